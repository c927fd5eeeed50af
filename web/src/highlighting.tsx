// Highlighted code as elements: a model's output never becomes markup.

import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";
import type { ComponentChild } from "preact";

type Node = ReturnType<typeof lowlight.highlight>["children"][number];

const LONGEST = 20_000; // characters: an answer is highlighted again with each token
const lowlight = createLowlight({ bash, c, cpp, css, diff, go, java, javascript, json, python, rust, sql, typescript, xml, yaml });
lowlight.registerAlias({ bash: ["curl", "grpc", "shell", "console"], javascript: ["node"], json: ["jsonc", "jsonl"] });

/** Highlights code; returns it unchanged if the language is unknown. */
export function highlighted(text: string, language: string): ComponentChild {
  const name = language.trim().split(/\s/)[0]!.toLowerCase();
  if (text.length > LONGEST || !lowlight.registered(name)) return text;
  return lowlight.highlight(name, text).children.map(element);
}

function element(node: Node, index: number): ComponentChild {
  if (node.type === "text") return node.value;
  if (node.type !== "element") return null;
  return <span key={index} class={String(node.properties["className"] ?? "").replaceAll(",", " ")}>{node.children.map(element)}</span>;
}
