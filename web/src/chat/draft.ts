// The message that is not sent yet; it survives a reload of its tab.

import { effect, signal } from "@preact/signals";
import type { Model } from "../../generated/allm/models/v1/model_pb";
import { isPicture, type AttachedFile, type Turn } from "./tree";

const PLACE = "allm.draft";
const CHARACTERS_PER_TOKEN = 4; // of English text

export const draft = signal<{ text: string; files: AttachedFile[] }>(stored());

effect(() => {
  const { text, files } = draft.value;
  // Files that are too large for this storage have to be attached again.
  if (!store({ text, files })) store({ text, files: [] });
});

function store(stored: typeof draft.value): boolean {
  try {
    sessionStorage.setItem(PLACE, JSON.stringify(stored));
    return true;
  } catch {
    return false;
  }
}

function stored() {
  try {
    const { text, files } = JSON.parse(sessionStorage.getItem(PLACE) ?? "");
    return { text: String(text), files: files as AttachedFile[] };
  } catch {
    return { text: "", files: [] };
  }
}

/** Why the model probably cannot read the path and the draft, as a sentence; null if it can. */
export function tooLong(model: Model, path: readonly Turn[]): string | null {
  const most = model.engine?.contextTokens || model.contextTokens;
  const estimate = tokensOf(path) + guess([draft.value]);
  if (!most || estimate <= most) return null;
  return `About ${estimate.toLocaleString("en")} tokens, but ${model.id} reads at most ${most.toLocaleString("en")}. ` +
    `Shorten the message, or start a new conversation.`;
}

/** The tokens of a path: as the server counted them for its last answer, and a guess for the rest. */
function tokensOf(path: readonly Turn[]): number {
  const at = path.findLastIndex((turn) => turn.role === "assistant" && turn.promptTokens !== null);
  const counted = path[at];
  const known = counted?.role === "assistant" ? (counted.promptTokens ?? 0) + (counted.tokens ?? 0) : 0;
  return known + guess(path.slice(at + 1));
}

// Pictures are not counted: a model can take 10 tokens for one, or 10,000.
function guess(parts: readonly (Turn | { text: string; files: AttachedFile[] })[]): number {
  const texts = parts.flatMap((part) => [part.text, ...("files" in part ? part.files.map((file) => (isPicture(file) ? "" : file.text)) : [])]);
  return Math.ceil(texts.reduce((sum, text) => sum + text.length, 0) / CHARACTERS_PER_TOKEN);
}
