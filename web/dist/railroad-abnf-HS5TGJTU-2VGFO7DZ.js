import{k as r}from"./chunk-TKFBLT7Z.js";r();throw new Error("Diagrams of this kind are not supported");
