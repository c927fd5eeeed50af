import{a as r,b as i}from"./chunk-FBVV4447.js";import"./chunk-T4JKXTER.js";import{k as e}from"./chunk-TKFBLT7Z.js";e();export{r as TreeViewModule,i as createTreeViewServices};
