// Markdown as elements. marked's lexer parses a model's output, which never becomes markup of this page: HTML is shown
// as text, images become links, and links lead only to the web.

import { Marked, type Token, type Tokens } from "marked";
import type { ComponentChild } from "preact";
import { useMemo } from "preact/hooks";
import { CopyButton } from "./copy_button";
import { Diagram } from "./diagrams/diagram";
import { highlighted } from "./highlighting";
import { formulas, hasFormulas, type FormulaToken } from "./math/delimiters";
import { Formula } from "./math/formula";

const SAFE_LINK = /^(https?:|mailto:)/i;
const ENDED = /\n *(?:`{3,}|~{3,})\s*$/; // a block of code with the fence at its end
const ENTITIES: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };

const LONGEST = 50_000; // characters: formulas of a longer text are shown as their source
const PLAIN = new Marked({ gfm: true });
const COMPLETE = new Marked({ gfm: true, extensions: formulas(false) });
const OPEN = new Marked({ gfm: true, extensions: formulas(true) });

/** A text with formulas. `open`: it is still being written, and what its end may belong to waits for its own end. */
export function Markdown({ text, open = false }: { text: string; open?: boolean }) {
  const tokens = useMemo(() => {
    const reader = text.length > LONGEST || !hasFormulas(text) ? PLAIN : open ? OPEN : COMPLETE;
    return reader.lexer(text);
  }, [text, open]);
  return <div class="markdown">{tokens.map(block)}</div>;
}

function block(token: Token, index: number): ComponentChild {
  switch (token.type) {
    case "heading": {
      // Below the heading of the page itself.
      const Level = `h${Math.min(6, (token as Tokens.Heading).depth + 1)}` as "h2";
      return <Level key={index}>{inlines(token.tokens)}</Level>;
    }
    case "paragraph": return <p key={index}>{inlines(token.tokens)}</p>;
    case "text": return <p key={index}>{inline(token, 0)}</p>;
    case "code": return code(token as Tokens.Code, index);
    case "formula": return formula(token as FormulaToken, index);
    case "blockquote": return <blockquote key={index}>{token.tokens?.map(block)}</blockquote>;
    case "list": return list(token as Tokens.List, index);
    case "table": return table(token as Tokens.Table, index);
    case "hr": return <hr key={index} />;
    case "space": case "def": return null;
    default: return <p key={index}>{token.raw}</p>;
  }
}

function code({ text, raw, lang = "" }: Tokens.Code, index: number) {
  const language = lang.split(/\s/)[0];
  const ended = ENDED.test(raw);
  if (language === "math") return <Formula key={index} source={text} display pending={!ended} />;
  if (language === "mermaid" && ended) return <Diagram key={index} source={text} />;
  return <CodeBlock key={index} text={text} language={lang} />;
}

function list(token: Tokens.List, index: number) {
  const items = token.items.map((item, at) => (
    <li key={at}>
      {item.task && <input type="checkbox" checked={item.checked} disabled aria-label={item.checked ? "done" : "to do"} />}
      {item.tokens.map((each, place) => (each.type === "text" ? <span key={place}>{inline(each, 0)}</span> : block(each, place)))}
    </li>
  ));
  return token.ordered ? <ol key={index} start={Number(token.start) || 1}>{items}</ol> : <ul key={index}>{items}</ul>;
}

function table(token: Tokens.Table, index: number) {
  return (
    <div class="scroll" key={index} tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead><tr>{token.header.map((cell, at) => <th key={at} scope="col">{inlines(cell.tokens)}</th>)}</tr></thead>
        <tbody>{token.rows.map((row, at) => <tr key={at}>{row.map((cell, place) => <td key={place}>{inlines(cell.tokens)}</td>)}</tr>)}</tbody>
      </table>
    </div>
  );
}

function inlines(tokens: Token[] | undefined): ComponentChild {
  return tokens?.map(inline);
}

function inline(token: Token, index: number): ComponentChild {
  switch (token.type) {
    case "strong": return <strong key={index}>{inlines(token.tokens)}</strong>;
    case "em": return <em key={index}>{inlines(token.tokens)}</em>;
    case "del": return <del key={index}>{inlines(token.tokens)}</del>;
    case "codespan": return <code key={index}>{(token as Tokens.Codespan).text}</code>;
    case "formula": return formula(token as FormulaToken, index);
    case "br": return <br key={index} />;
    case "link": case "image": return link(token as Tokens.Link, index);
    case "escape": return (token as Tokens.Escape).text;
    case "text": return token.tokens ? inlines(token.tokens) : plain((token as Tokens.Text).text);
    default: return token.raw;
  }
}

function link(token: Tokens.Link, index: number): ComponentChild {
  const name = token.type === "link" ? inlines(token.tokens) : token.text || token.href;
  if (!SAFE_LINK.test(token.href)) return <span key={index}>{name}</span>;
  return <a key={index} href={token.href} target="_blank" rel="noopener noreferrer">{name}</a>;
}

function formula({ text, display, pending }: FormulaToken, index: number) {
  return <Formula key={index} source={text} display={display} pending={pending} />;
}

function plain(text: string): string {
  return text.replace(/&(?:amp|lt|gt|quot|#39);/g, (entity) => ENTITIES[entity] ?? entity);
}

/** Code with its language and a button to copy it. */
export function CodeBlock({ text, language }: { text: string; language: string }) {
  const code = useMemo(() => highlighted(text, language), [text, language]);
  return (
    <figure class="codeblock">
      <figcaption><span>{language || "text"}</span><CopyButton text={text} /></figcaption>
      <pre tabIndex={0}><code>{code}</code></pre>
    </figure>
  );
}
