import{a as r,b as m}from"./chunk-WFTFEUEH.js";import"./chunk-T4JKXTER.js";import{k as e}from"./chunk-TKFBLT7Z.js";e();export{r as TreemapModule,m as createTreemapServices};
