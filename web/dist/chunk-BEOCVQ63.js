import{a as o}from"./chunk-LTI73TOH.js";import{k as e}from"./chunk-TKFBLT7Z.js";e();var r=o(()=>`
  /* Font Awesome icon styling - consolidated */
  .label-icon {
    display: inline-block;
    height: 1em;
    overflow: visible;
    vertical-align: -0.125em;
  }
  
  .node .label-icon path {
    fill: currentColor;
    stroke: revert;
    stroke-width: revert;
  }
`,"getIconStyles");export{r as a};
