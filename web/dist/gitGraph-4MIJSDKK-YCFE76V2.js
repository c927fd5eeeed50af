import{a as e,b as t}from"./chunk-WS4ZUHJN.js";import"./chunk-T4JKXTER.js";import{k as r}from"./chunk-TKFBLT7Z.js";r();export{e as GitGraphModule,t as createGitGraphServices};
