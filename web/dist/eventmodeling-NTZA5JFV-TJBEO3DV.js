import{a as o,b as r}from"./chunk-VFJE4HNC.js";import"./chunk-T4JKXTER.js";import{k as e}from"./chunk-TKFBLT7Z.js";e();export{o as EventModelingModule,r as createEventModelingServices};
