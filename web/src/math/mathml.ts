// LaTeX as MathML elements, by KaTeX: loaded with the first formula. KaTeX's tree becomes elements one by one, of known
// names and attributes and without styles; the style sheet does what MathML Core has no attribute for.

import katex, { type KatexOptions } from "katex";
import { h, type ComponentChild } from "preact";
import { inAlphabet } from "./alphabets";

/** What KaTeX makes: an element, a text, or a space of `width` em (with a `character` if there is one of that width). */
interface Tree {
  type?: string;
  attributes?: Record<string, string>;
  children?: Tree[];
  classes?: string[];
  text?: string;
  width?: number;
  character?: string | null;
}

/** Not in KaTeX's types, and what its own `render` calls. */
const { __renderToDomTree: parse } = katex as unknown as { __renderToDomTree(source: string, options: KatexOptions): Tree };

const DEEPEST = 100; // elements
// A definition makes a short formula as long as it likes.
const DEFINITION = /\\(?:[gex]?def|global|long|(?:future)?let|(?:re)?newcommand|providecommand|(?:re)?newenvironment)(?![a-zA-Z])/;
// Around a table KaTeX mixes them up: `|` in the columns of an array becomes top and bottom.
const SIDES: Record<string, string> = { top: "left", bottom: "right", left: "top", right: "bottom" };
const OPTIONS: KatexOptions = { output: "mathml", throwOnError: true, strict: "ignore", maxSize: 10, maxExpand: 1000, trust: refuse };
const ELEMENTS = new Set([
  "math", "semantics", "annotation", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mover", "munder", "munderover", "msup", "msub",
  "msubsup", "mfrac", "mroot", "msqrt", "mtable", "mtr", "mtd", "mstyle", "mpadded", "mphantom", "menclose",
]);
const ATTRIBUTES = new Set([
  "accent", "accentunder", "depth", "display", "displaystyle", "encoding", "fence", "form", "height", "largeop", "linethickness",
  "lspace", "mathbackground", "mathcolor", "mathsize", "maxsize", "minsize", "movablelimits", "rspace", "scriptlevel", "separator",
  "stretchy", "symmetric", "voffset", "width",
]);

/** Links, pictures and styles, which KaTeX would replace by their names. */
function refuse({ command }: { command: string }): never {
  throw new Error(`${command} is not supported`);
}

/**
 * Returns a formula as elements.
 *
 * @throws Error that says what is wrong with the source.
 */
export function mathml(source: string, display: boolean): ComponentChild {
  const definition = source.match(DEFINITION);
  if (definition) throw new Error(`${definition[0]}: definitions are not supported`);
  let tree: Tree;
  try {
    tree = parse(source, { ...OPTIONS, displayMode: display });
  } catch (error) {
    if (error instanceof katex.ParseError) throw new Error(error.rawMessage);
    throw error;
  }
  return tree.children!.map((child) => element(child, 0));
}

function element(tree: Tree, depth: number): ComponentChild {
  if (depth > DEEPEST) throw new Error(`More than ${DEEPEST} levels`);
  if (tree.text !== undefined) return tree.text;
  if (!tree.type) return tree.character ?? h("mspace", { width: `${tree.width}em` } as object);
  if (!ELEMENTS.has(tree.type)) throw new Error(`${tree.type} is not supported`);
  const { mathvariant = "", notation, ...attributes } = tree.attributes ?? {};
  const known = Object.fromEntries(Object.entries(attributes).filter(([name]) => ATTRIBUTES.has(name)));
  const names = [...(tree.classes ?? [])];
  const sides = tree.children?.[0]?.type === "mtable" ? SIDES : {};
  if (notation) names.push(...notation.split(" ").map((each) => `enclosed-${sides[each] ?? each}`));
  // Words stay letters, which can be searched and read aloud; symbols become characters of another alphabet.
  if (tree.type === "mtext" && mathvariant) names.push(...mathvariant.split("-").map((each) => `variant-${each}`));
  else if (mathvariant === "normal") known["mathvariant"] = mathvariant;
  // A table around a formula and its number, which is still a formula in a line of its own.
  if (tree.type === "mtable" && known["width"]) known["displaystyle"] = "true";
  const children = tree.type === "mtable" ? rows(tree, depth) : (tree.children ?? []).map((child) => element(child, depth + 1));
  const moved = mathvariant && tree.type !== "mtext";
  return h(tree.type === "menclose" ? "mrow" : tree.type, { ...known, ...(names.length && { class: names.join(" ") }) } as object,
    moved ? children.map((child) => (typeof child === "string" ? inAlphabet(child, mathvariant) : child)) : children);
}

/** The rows of a table, whose cells know by their classes how they are aligned, spaced and ruled. */
function rows(tree: Tree, depth: number): ComponentChild[] {
  const of = (name: string) => (tree.attributes?.[name] ?? "").split(" ");
  const [aligned, spaces, columnLines, rowLines] = [of("columnalign"), of("columnspacing"), of("columnlines"), of("rowlines")];
  // The last value holds for all further columns.
  const space = (at: number) => spaces[Math.min(at, spaces.length - 1)];
  return tree.children!.map((row, down) => h("mtr", null, row.children!.map((cell, across) => {
    const names = [...(cell.classes ?? []), `align-${aligned[across] || "center"}`];
    if (across > 0 && space(across - 1) === "0em") names.push("close-before");
    if (across < row.children!.length - 1 && space(across) === "0em") names.push("close-after");
    if (across > 0 && (columnLines[across - 1] || "none") !== "none") names.push(`before-${columnLines[across - 1]}`);
    if (down > 0 && (rowLines[down - 1] || "none") !== "none") names.push(`above-${rowLines[down - 1]}`);
    return h("mtd", { class: names.join(" ") } as object, (cell.children ?? []).map((child) => element(child, depth + 3)));
  })));
}
