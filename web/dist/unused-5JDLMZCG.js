import{c as a,d as b,e as c,f as d}from"./chunk-TKFBLT7Z.js";d();export{c as default,a as parse,b as performance};
