// Mermaid's diagrams as SVG: loaded with the first diagram, as a bundle of its own (build.mjs), in which `document` and
// `window` are those of document.ts.

import mermaid, { type MermaidConfig } from "mermaid";
import { addMeasures } from "./geometry";

/** A drawn diagram: the SVG's text, its size in CSS pixels, and what it says. */
export interface Drawing {
  svg: string;
  width: number;
  height: number;
  words: string;
}

const MOST_EDGES = 200;
const WIDE = { useMaxWidth: false };
const CONFIG: MermaidConfig = {
  startOnLoad: false,
  securityLevel: "strict",
  suppressErrorRendering: true,
  logLevel: "fatal",
  htmlLabels: false, // an SVG in an <img> has no HTML in WebKit
  fontFamily: "system-ui, sans-serif",
  maxEdges: MOST_EDGES,
  gantt: { ...WIDE, useWidth: 800 },
  // What a diagram's own settings cannot change.
  secure: ["secure", "securityLevel", "startOnLoad", "maxTextSize", "suppressErrorRendering", "maxEdges", "htmlLabels", "themeCSS", "fontFamily", "logLevel"],
};

let drawn = 0;
let last: Promise<unknown> = Promise.resolve();
addMeasures(Object.getPrototypeOf(Object.getPrototypeOf(document.createElementNS("http://www.w3.org/2000/svg", "g"))));

/**
 * Draws a diagram, after those that were asked for earlier.
 *
 * @throws Error that says what is wrong with the source.
 */
export function draw(source: string, dark: boolean): Promise<Drawing> {
  const drawing = last.then(() => drawOne(source, dark));
  last = drawing.catch(() => undefined);
  return drawing;
}

async function drawOne(source: string, dark: boolean): Promise<Drawing> {
  mermaid.initialize({ ...CONFIG, theme: dark ? "dark" : "default" });
  document.body.replaceChildren(); // what an earlier one has left
  const { svg } = await mermaid.render(`diagram-${(drawn += 1)}`, source);
  const [, , width, height] = (svg.match(/viewBox="([^"]*)"/)?.[1] ?? "").split(" ").map(Number);
  if (!(width && height)) throw new Error("The diagram is empty");
  // An image has the size that its root says.
  const root = svg.replace(/^<svg[^>]*>/, (tag) => tag.replace(/ (?:width|height|style)="[^"]*"/g, "").replace("<svg", `<svg width="${width}" height="${height}"`));
  return { svg: root, width, height, words: words(svg) };
}

function words(svg: string): string {
  const texts = [...svg.matchAll(/<text[^>]*>(.*?)<\/text>/gs)].map(([, inside]) => inside!.replace(/<[^>]*>/g, "").trim());
  const characters: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"' };
  return [...new Set(texts)].filter(Boolean).join(", ").replace(/&(amp|lt|gt|quot);/g, (_, name: string) => characters[name]!);
}
