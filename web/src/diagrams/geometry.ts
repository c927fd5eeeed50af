// Sizes of what mermaid draws. Its elements are outside of the page (document.ts), so they are measured as copies in an
// invisible corner of it: shapes and texts only, with mermaid's style sheet around them.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "g", "rect", "circle", "ellipse", "line", "polyline", "polygon", "path", "text", "tspan"]);
const ATTRIBUTES = new Set([
  "alignment-baseline", "class", "cx", "cy", "d", "dominant-baseline", "dx", "dy", "font-family", "font-size", "font-style",
  "font-weight", "height", "id", "points", "r", "rx", "ry", "text-anchor", "transform", "viewBox", "width", "x", "x1", "x2",
  "y", "y1", "y2",
]);
const NOWHERE = { x: 0, y: 0, width: 0, height: 0 };

let corner: ShadowRoot | null = null;
let worn = "";

function invisible(): ShadowRoot {
  if (!corner) {
    const host = globalThis.document.createElement("div");
    host.setAttribute("aria-hidden", "true");
    host.className = "measuring";
    globalThis.document.body.append(host);
    corner = host.attachShadow({ mode: "closed" });
  }
  return corner;
}

/** Gives the corner a style sheet, which is read only once for a diagram. */
function dress(place: ShadowRoot, css: string): void {
  if (css === worn) return;
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  place.adoptedStyleSheets = [sheet];
  worn = css;
}

/** Copies an element without its children; null: it is neither a shape nor a text. */
function shallow(from: Element): SVGElement | null {
  if (!SHAPES.has(from.localName)) return null;
  const copy = globalThis.document.createElementNS(SVG, from.localName);
  for (const { name, value } of [...from.attributes]) {
    if (ATTRIBUTES.has(name)) copy.setAttribute(name, value);
    // The policy lets scripts set single properties; these are the ones that texts are measured by.
    if (name === "style") for (const [, property, set] of value.matchAll(/((?:font|letter|word|text)[\w-]*)\s*:\s*([^;]+)/g)) copy.style.setProperty(property!, set!);
  }
  return copy;
}

function deep(from: Element): SVGElement | null {
  const copy = shallow(from);
  for (const child of copy ? [...from.childNodes] : []) {
    const copied = child.nodeType === 3 ? child.textContent : child.nodeType === 1 ? deep(child as Element) : null;
    if (copied) copy!.append(copied);
  }
  return copy;
}

/** Returns what `read` reads from a copy of the element in the page, or `otherwise` if it is not a shape or a text. */
function measured<T>(element: Element, otherwise: T, read: (copy: SVGGraphicsElement) => T): T {
  const copy = deep(element);
  if (!copy) return otherwise;
  let top = copy;
  let root: Element = element;
  for (let parent = element.parentElement; parent && SHAPES.has(parent.localName); parent = parent.parentElement) {
    const around = shallow(parent)!;
    around.append(top);
    top = around;
    root = parent;
  }
  const place = invisible();
  dress(place, [...root.children].filter((each) => each.localName === "style").map((each) => each.textContent).join("\n"));
  place.replaceChildren(top);
  try {
    return read(copy as SVGGraphicsElement);
  } finally {
    place.replaceChildren();
  }
}

function box({ x, y, width, height }: DOMRect) {
  return { x, y, width, height, left: x, top: y, right: x + width, bottom: y + height };
}

/** What `window.getComputedStyle` returns of the properties that mermaid reads. */
export function computedStyle(element: Element) {
  const read = (copy: Element) => {
    const { fontSize, fontFamily, textAnchor } = getComputedStyle(copy);
    return { fontSize, fontFamily, textAnchor };
  };
  const found = measured(element, { fontSize: "16px", fontFamily: "sans-serif", textAnchor: "start" }, read);
  return { ...found, getPropertyValue: (name: string) => (name === "font-size" ? found.fontSize : "") };
}

/** Gives elements the methods by which an SVG is measured. */
export function addMeasures(prototype: object): void {
  const methods: Record<string, (this: SVGGraphicsElement, ...given: never[]) => unknown> = {
    getBBox() { return measured(this, NOWHERE, (copy) => box(copy.getBBox())); },
    getBoundingClientRect() { return measured(this, { ...NOWHERE, left: 0, top: 0, right: 0, bottom: 0 }, (copy) => box(copy.getBoundingClientRect())); },
    getComputedTextLength() { return measured(this, 0, (copy) => (copy as SVGTextContentElement).getComputedTextLength()); },
    getTotalLength() { return measured(this, 0, (copy) => (copy as SVGGeometryElement).getTotalLength()); },
  };
  Object.assign(prototype, methods);
}
