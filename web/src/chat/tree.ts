// A conversation is a tree of turns: another version of a turn is one more child of the same parent.

import type { FinishReason } from "../../generated/allm/text/v1/chat_pb";
import type { Kept } from "../database";
import type { Failure } from "../failure";
import type { Settings } from "./settings";

/** A text file that a message brings along. */
export interface TextFile {
  name: string;
  text: string;
}

/** A picture that a message brings along. */
export interface PictureFile {
  name: string;
  /** A data URL. */
  url: string;
}

export type AttachedFile = TextFile | PictureFile;

/** A tool call, and its result as the user entered it. */
export interface Call {
  id: string;
  name: string;
  args: string;
  result: string | null;
}

interface Node {
  id: string;
  parent: string | null;
}

export interface Message extends Node {
  role: "user";
  text: string;
  files: AttachedFile[];
}

/** A model's answer; times are from `performance.now()` of one page, in milliseconds: only their differences count. */
export interface Answer extends Node {
  role: "assistant";
  model: string;
  /** As they were for this answer. */
  settings: Settings;
  text: string;
  reasoning: string;
  calls: Call[];
  state: "running" | "done" | "failed";
  failure: Pick<Failure, "kind" | "sentence" | "requestId"> | null;
  finish: FinishReason;
  askedAt: number;
  firstAt: number | null;
  lastAt: number | null;
  tokens: number | null;
  promptTokens: number | null;
  edited?: boolean;
}

export type Turn = Message | Answer;

export interface Conversation extends Kept {
  title: string;
  /** The oldest first. */
  turns: Turn[];
  /** The last turn of the versions that are shown; null if there is none. */
  leaf: string | null;
  settings: Settings;
}

const TITLE_LENGTH = 60;

export function isPicture(file: AttachedFile): file is PictureFile {
  return "url" in file;
}

/** The files of all messages among these turns. */
export function filesOf(turns: readonly Turn[]): AttachedFile[] {
  return turns.flatMap((turn) => (turn.role === "user" ? turn.files : []));
}

/** The turns from the first to the one with this id. */
export function pathTo({ turns }: Conversation, id: string | null): Turn[] {
  const byId = new Map(turns.map((turn) => [turn.id, turn]));
  const path: Turn[] = [];
  for (let turn = byId.get(id ?? ""); turn; turn = byId.get(turn.parent ?? "")) path.unshift(turn);
  return path;
}

/** All versions of a turn, itself included, the oldest first. */
export function versionsOf({ turns }: Conversation, turn: Turn): Turn[] {
  return turns.filter((each) => each.parent === turn.parent);
}

/** The last turn after this one, by the newest version of each. */
export function leafAfter({ turns }: Conversation, id: string): string {
  const next = turns.findLast((turn) => turn.parent === id);
  return next ? leafAfter({ turns } as Conversation, next.id) : id;
}

/** The conversation with one more turn, which is then shown. */
export function withTurn(conversation: Conversation, turn: Turn): Conversation {
  return { ...conversation, turns: [...conversation.turns, turn], leaf: turn.id, at: Date.now() };
}

/** True while a model answers in the conversation. */
export function isRunning(conversation: Conversation | null): boolean {
  return Boolean(conversation?.turns.some((turn) => turn.role === "assistant" && turn.state === "running"));
}

/** The answer as it is when it was stopped. */
export function stopped(answer: Answer): Answer {
  return { ...answer, state: "failed", failure: { kind: "stopped", sentence: "Stopped.", requestId: "" } };
}

/** A title made of the first message. */
export function titleOf({ text, files }: Pick<Message, "text" | "files">): string {
  const line = text.trim().split("\n")[0] || files[0]?.name || "Conversation";
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1).trimEnd()}…` : line;
}

/** The text around the first match of a search, if all its words are in the conversation; null otherwise. */
export function found({ title, turns }: Conversation, search: string): string | null {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = [title, ...turns.map((turn) => turn.text)];
  const lower = texts.map((text) => text.toLowerCase());
  if (!words.every((word) => lower.some((text) => text.includes(word)))) return null;
  const word = words.find((each) => !lower[0]!.includes(each)) ?? words[0]; // the title is seen anyway
  const at = word ? lower.findIndex((text, place) => place > 0 && text.includes(word)) : -1;
  if (!word || at < 0) return "";
  const start = Math.max(0, lower[at]!.indexOf(word) - 20);
  return `${start ? "…" : ""}${texts[at]!.slice(start, start + 80).trim()}`;
}
