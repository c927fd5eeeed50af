// The document in which mermaid draws: a tree of objects outside of the page. build.mjs puts it in the place of `document`
// and `window` in all that draws diagrams. Mermaid sets styles in the markup and makes elements of text, which the page's
// policy forbids; here this makes nothing but a tree, whose text becomes a picture.

import { parseHTML } from "linkedom";
import { computedStyle } from "./geometry";

const { document: made } = parseHTML("<!doctype html><html><head></head><body></body></html>");

export const document = made;

const nothing = () => undefined;

/** What libraries ask of a window; events never happen in it. */
export const window = {
  document,
  navigator: { userAgent: "" },
  performance: { now: () => performance.now() },
  getComputedStyle: computedStyle,
  requestAnimationFrame: (task: FrameRequestCallback) => requestAnimationFrame(task),
  cancelAnimationFrame: (task: number) => cancelAnimationFrame(task),
  setTimeout: (task: () => void, milliseconds: number) => setTimeout(task, milliseconds),
  clearTimeout: (task: number) => clearTimeout(task),
  addEventListener: nothing,
  removeEventListener: nothing,
};
