import{a as r,b as t}from"./chunk-QQGPSRPQ.js";import"./chunk-T4JKXTER.js";import{k as e}from"./chunk-TKFBLT7Z.js";e();export{r as PacketModule,t as createPacketServices};
