// Where a formula begins and ends in Markdown: `$…$` and `\(…\)` in a line, `$$…$$`, `\[…\]` and LaTeX's environments on
// lines of their own.

import type { TokenizerAndRendererExtension, Tokens } from "marked";

export interface FormulaToken extends Tokens.Generic {
  type: "formula";
  text: string; // LaTeX
  display: boolean;
  pending: boolean; // its end is missing
}

const ENVIRONMENTS = "(?:equation|align|alignat|aligned|gather|gathered|multline|cases|array|matrix|[pbBvV]matrix|split|CD)\\*?";
// Each pattern reads a text once: a formula contains no second beginning of its kind.
const IN_DOLLARS = "(?:\\\\[^]|[^$\\\\])";
const IN_BRACKETS = "(?:\\\\[^[\\]]|[^\\\\])";
const IN_ENVIRONMENT = "(?:(?!\\\\begin\\{\\2\\})[^])";
const END_OF_LINE = "[ \\t]*(?:\\n|$)";
const START = new RegExp(`\\n {0,3}(?:\\$\\$|\\\\\\[|\\\\begin\\{${ENVIRONMENTS}\\})`);
const BLOCKS = [
  new RegExp(` {0,3}\\$\\$(${IN_DOLLARS}+?)\\$\\$${END_OF_LINE}`, "y"),
  new RegExp(` {0,3}\\\\\\[(${IN_BRACKETS}+?)\\\\\\]${END_OF_LINE}`, "y"),
  new RegExp(` {0,3}(\\\\begin\\{(${ENVIRONMENTS})\\}${IN_ENVIRONMENT}+?\\\\end\\{\\2\\})${END_OF_LINE}`, "y"),
];
const UNENDED = [
  new RegExp(` {0,3}\\$\\$(${IN_DOLLARS}*)[$\\\\]?$`, "y"),
  new RegExp(` {0,3}\\\\\\[(${IN_BRACKETS}*)\\\\?$`, "y"),
  new RegExp(` {0,3}(\\\\begin\\{(${ENVIRONMENTS})\\}${IN_ENVIRONMENT}*)$`, "y"),
];
// As Pandoc has it, so that prices stay prices: no space inside of the dollars, no digit behind them.
const INLINES: [RegExp, boolean][] = [
  [new RegExp(`\\$\\$(${IN_DOLLARS}+?)\\$\\$`, "y"), true],
  [new RegExp(`\\\\\\[(${IN_BRACKETS}+?)\\\\\\]`, "y"), true],
  [/\\\(((?:\\[^()]|[^\\])+?)\\\)/y, false],
  [new RegExp(`\\$((?!\\s)${IN_DOLLARS}+?)(?<!\\s)\\$(?!\\d)`, "y"), false],
];

const MOST = 3_000; // places that may be the beginning of a formula
const BEGINNING = /\$|\\[([]|\\begin\{/g;

/** Says whether a text has some formulas, and not so many that reading it with each new token would take long. */
export function hasFormulas(text: string): boolean {
  const found = text.match(BEGINNING)?.length ?? 0;
  return 0 < found && found <= MOST;
}

function token(raw: string, text: string, display: boolean, pending = false): FormulaToken {
  return { type: "formula", raw, text: text.trim(), display, pending };
}

function match(pattern: RegExp, text: string): RegExpExecArray | null {
  pattern.lastIndex = 0;
  return pattern.exec(text);
}

function first(patterns: RegExp[], text: string, pending: boolean): FormulaToken | undefined {
  for (const pattern of patterns) {
    const found = match(pattern, text);
    if (found) return token(found[0], found[1]!, true, pending);
  }
  return undefined;
}

/** Formulas for marked. If the text is `open`, more of it may follow, and a formula at its end may lack its own end. */
export function formulas(open: boolean): TokenizerAndRendererExtension[] {
  return [
    {
      name: "block formula", level: "block",
      // Within the paragraph: marked asks again for each.
      start: (text) => { const at = text.split("\n\n", 1)[0]!.search(START); return at < 0 ? undefined : at + 1; },
      tokenizer: (text) => first(BLOCKS, text, false) ?? (open ? first(UNENDED, text, true) : undefined),
    },
    {
      name: "formula", level: "inline",
      start: (text) => { const at = text.search(/\$|\\[([]/); return at < 0 ? undefined : at; },
      tokenizer: (text) => {
        for (const [pattern, display] of INLINES) {
          const found = match(pattern, text);
          if (found) return token(found[0], found[1]!, display);
        }
        return undefined;
      },
    },
  ];
}
