import{a as e,b as a}from"./chunk-BYJWIDLO.js";import"./chunk-T4JKXTER.js";import{k as r}from"./chunk-TKFBLT7Z.js";r();export{e as RadarModule,a as createRadarServices};
