import{k as a}from"./chunk-TKFBLT7Z.js";a();var o=Object.defineProperty,f=(r,e)=>o(r,"name",{value:e,configurable:!0}),p=(r,e)=>{for(var t in e)o(r,t,{get:e[t],enumerable:!0})};export{f as a,p as b};
