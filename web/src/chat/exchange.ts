// Conversations as a file, to keep or to take to another browser.

import { FinishReason } from "../../generated/allm/text/v1/chat_pb";
import { save } from "../saving";
import { conversations, put } from "./conversations";
import { FIRST, isWrong, readSettings, type Settings } from "./settings";
import { pathTo, type Answer, type AttachedFile, type Call, type Conversation, type Turn } from "./tree";

const FORMAT = "allm-conversations";
const VERSION = 1;
const PICTURE = /^data:image\/(gif|jpeg|png|webp);base64,[\w+/=]+$/;

type Json = Record<string, unknown>;

/** Saves conversations as one JSON file. */
export function exportJson(chosen: readonly Conversation[]): void {
  const name = chosen.length === 1 ? fileName(chosen[0]!) : `conversations-${new Date().toISOString().slice(0, 10)}`;
  save(JSON.stringify({ format: FORMAT, version: VERSION, conversations: chosen }, null, 1), `${name}.json`, "application/json");
}

/** Saves the shown versions of a conversation for people to read. */
export function exportMarkdown(conversation: Conversation): void {
  const parts = pathTo(conversation, conversation.leaf).map((turn) => `## ${turn.role === "user" ? "You" : turn.model}\n\n${turn.text}\n`);
  save([`# ${conversation.title}\n`, ...parts].join("\n"), `${fileName(conversation)}.md`, "text/markdown");
}

/** Adds the conversations of a file; of two with one id the later change stays. Raises an Error for the user. */
export async function importFile(file: File): Promise<number> {
  let read;
  try {
    read = readConversations(JSON.parse(await file.text()));
  } catch (error) {
    const why = error instanceof SyntaxError ? "it is not valid JSON" : (error as Error).message;
    throw new Error(`${file.name} cannot be imported: ${why}.`);
  }
  for (const conversation of read) {
    const known = conversations.peek().get(conversation.id);
    if (!known || known.at < conversation.at) put(conversation);
  }
  return read.length;
}

function fileName({ title }: Conversation): string {
  return title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60).toLowerCase() || "conversation";
}

function readConversations(json: unknown): Conversation[] {
  const { format, version, conversations: listed } = object(json, "the file");
  if (format !== FORMAT || !Array.isArray(listed)) throw new Error(`its "format" is not "${FORMAT}"`);
  if (version !== VERSION) throw new Error(`its version is ${version}, and this console reads ${VERSION}`);
  return listed.map((each, at) => conversation(each, `conversations[${at}]`));
}

// Everything is read field by field: a file can contain anything.
function conversation(json: unknown, where: string): Conversation {
  const from = object(json, where);
  const turns = list(from["turns"], `${where}.turns`).map((each, at) => turn(each, `${where}.turns[${at}]`));
  const known = new Set<string>();
  for (const { id, parent } of turns) {
    // A turn follows its parent, so there is no circle.
    if (known.has(id) || (parent !== null && !known.has(parent))) throw new Error(`${where}: turn ${id} does not follow its parent`);
    known.add(id);
  }
  const leaf = from["leaf"] === null ? null : text(from["leaf"], `${where}.leaf`);
  if (leaf !== null && !known.has(leaf)) throw new Error(`${where}.leaf is no turn`);
  return {
    id: text(from["id"], `${where}.id`), title: text(from["title"], `${where}.title`), at: number(from["at"]) ?? Date.now(),
    turns, leaf, settings: readSettings(from["settings"]),
  };
}

function turn(json: unknown, where: string): Turn {
  const from = object(json, where);
  const node = {
    id: text(from["id"], `${where}.id`), parent: from["parent"] === null ? null : text(from["parent"], `${where}.parent`),
    text: text(from["text"], `${where}.text`),
  };
  if (from["role"] === "user") return { ...node, role: "user", files: list(from["files"] ?? [], `${where}.files`).map((each) => file(each, where)) };
  if (from["role"] !== "assistant") throw new Error(`${where}.role is neither "user" nor "assistant"`);
  const answer: Answer = {
    ...node, role: "assistant", model: text(from["model"], `${where}.model`), settings: usable(readSettings(from["settings"])),
    reasoning: String(from["reasoning"] ?? ""), calls: list(from["calls"] ?? [], `${where}.calls`).map((each) => call(each, where)),
    state: from["state"] === "done" ? "done" : "failed", failure: failure(from["failure"]),
    finish: (number(from["finish"]) ?? 0) in FinishReason ? (from["finish"] as FinishReason) : FinishReason.UNSPECIFIED,
    askedAt: number(from["askedAt"]) ?? 0, firstAt: number(from["firstAt"]), lastAt: number(from["lastAt"]),
    tokens: number(from["tokens"]), promptTokens: number(from["promptTokens"]), edited: from["edited"] === true,
  };
  return answer;
}

/** The settings of an answer, whose request is shown as code. */
function usable(settings: Settings): Settings {
  return isWrong(settings) ? FIRST : settings;
}

function file(json: unknown, where: string): AttachedFile {
  const from = object(json, `${where}.files`);
  const name = text(from["name"], `${where}.files.name`);
  if (from["url"] === undefined) return { name, text: text(from["text"], `${where}.files.text`) };
  const url = text(from["url"], `${where}.files.url`);
  if (!PICTURE.test(url)) throw new Error(`${where}.files.url is not a data URL of a picture`);
  return { name, url };
}

function call(json: unknown, where: string): Call {
  const from = object(json, `${where}.calls`);
  const [id, name, args] = ["id", "name", "args"].map((field) => text(from[field], `${where}.calls.${field}`)) as [string, string, string];
  return { id, name, args, result: typeof from["result"] === "string" ? from["result"] : null };
}

function failure(json: unknown): Answer["failure"] {
  if (!json) return null;
  const { kind, sentence, requestId } = json as Json;
  return { kind: kind === "stopped" ? "stopped" : "broken", sentence: String(sentence ?? ""), requestId: String(requestId ?? "") };
}

function object(json: unknown, where: string): Json {
  if (typeof json !== "object" || json === null || Array.isArray(json)) throw new Error(`${where} is not an object`);
  return json as Json;
}

function list(json: unknown, where: string): unknown[] {
  if (!Array.isArray(json)) throw new Error(`${where} is not a list`);
  return json;
}

function text(json: unknown, where: string): string {
  if (typeof json !== "string") throw new Error(`${where} is not a text`);
  return json;
}

function number(json: unknown): number | null {
  return typeof json === "number" && Number.isFinite(json) ? json : null;
}
