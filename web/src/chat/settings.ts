// The settings of answers, as entered in the form; empty means the server's default.

import type { MessageInitShape } from "@bufbuild/protobuf";
import type { StreamChatCompletionRequestSchema } from "../../generated/allm/text/v1/chat_service_pb";
import { numberProblem, type Limits } from "../fields";
import { alike, remembered } from "../remembered";

export const NUMBERS = {
  temperature: { label: "Temperature", low: 0, high: 2, whole: false, usual: "1" },
  top_p: { label: "Top P", low: 0, high: 1, whole: false, usual: "1" },
  top_k: { label: "Top K", low: 0, high: 1_000_000, whole: true, usual: "0 (off)" },
  min_p: { label: "Min P", low: 0, high: 1, whole: false, usual: "0 (off)" },
  max_tokens: { label: "Max tokens", low: 1, high: 1_000_000, whole: true, usual: "default" },
  seed: { label: "Seed", low: 0, high: Number.MAX_SAFE_INTEGER, whole: true, usual: "random" },
} as const satisfies Record<string, Limits & { usual: string }>;

export type NumberName = keyof typeof NUMBERS;

export interface Settings {
  model: string;
  system: string;
  numbers: Record<NumberName, string>;
  stop: string;
  effort: string;
  tools: string;
  toolChoice: "auto" | "required" | "none";
  schema: string;
}

/** A function that the model may call. */
export interface ToolForm {
  name: string;
  description: string;
  parameters: unknown;
  strict: boolean;
}

// At the server's default of 1, which is OpenAI's, small models drift; a lower value shows them at their best.
const CALM = "0.7";

export const FIRST: Settings = {
  model: "",
  system: "",
  numbers: { temperature: CALM, top_p: "", top_k: "", min_p: "", max_tokens: "", seed: "" },
  stop: "",
  effort: "",
  tools: "",
  toolChoice: "auto",
  schema: "",
};

/** The settings of the next answer: at first those that this browser had last. */
export const settings = remembered("chat", FIRST);

/** Reads settings from JSON; what is not a setting's text counts as the first value. */
export function readSettings(stored: unknown): Settings {
  const read = alike(FIRST, stored);
  return { ...read, toolChoice: ["required", "none"].includes(read.toolChoice) ? read.toolChoice : "auto" };
}

export function change(part: Partial<Settings>): void {
  settings.value = { ...settings.value, ...part };
}

export function toolsProblem(text: string): string | null {
  return problem(() => readTools(text));
}

export function schemaProblem(text: string): string | null {
  return problem(() => {
    if (text.trim() && typeof JSON.parse(text) !== "object") throw new Error("A JSON schema must be an object.");
  });
}

/** True if the form has an error. */
export function isWrong(form: Settings): boolean {
  const numbers = Object.entries(form.numbers).some(([name, text]) => numberProblem(text, NUMBERS[name as NumberName]));
  return numbers || Boolean(toolsProblem(form.tools) || schemaProblem(form.schema));
}

/** The tools, in OpenAI's form or as bare functions. */
export function readTools(text: string): ToolForm[] {
  if (!text.trim()) return [];
  const parsed: unknown = JSON.parse(text);
  const entries = Array.isArray(parsed) ? parsed : [parsed];
  return entries.map((entry) => {
    const tool = entry?.function ?? entry;
    if (typeof tool?.name !== "string") throw new Error("Every tool needs a name.");
    return { name: tool.name, description: tool.description ?? "", parameters: tool.parameters ?? {}, strict: Boolean(tool.strict) };
  });
}

type Sampling = NonNullable<MessageInitShape<typeof StreamChatCompletionRequestSchema>["sampling"]>;

/** The form's sampling parameters for the typed API. */
export function sampling(form: Settings): Sampling {
  const value = (name: NumberName) => (form.numbers[name].trim() ? Number(form.numbers[name]) : undefined);
  const seed = value("seed");
  return {
    temperature: value("temperature"),
    topP: value("top_p"),
    topK: value("top_k"),
    minP: value("min_p"),
    maxTokens: value("max_tokens"),
    seed: seed === undefined ? undefined : BigInt(seed),
    stop: form.stop.split("\n").filter(Boolean),
  };
}

function problem(check: () => void): string | null {
  try {
    check();
    return null;
  } catch (error) {
    return error instanceof SyntaxError ? `Invalid JSON: ${error.message.replace(/ in JSON at position \d+/, "")}.` : (error as Error).message;
  }
}
