// Messages to a model, and the streams of its answers; an answer goes on while another conversation is open.

import { signal, type Signal } from "@preact/signals";
import { FinishReason } from "../../generated/allm/text/v1/chat_pb";
import { ChatService, type StreamChatCompletionResponse } from "../../generated/allm/text/v1/chat_service_pb";
import { newId } from "../database";
import { asFailure, sizeRefused } from "../failure";
import { stream } from "../grpc_web";
import { begin, change, conversations, followTabs, putTurn, saveNow } from "./conversations";
import { endLostAnswers } from "./lost_answers";
import { requestFor } from "./request";
import { change as changeSettings, settings } from "./settings";
import { filesOf, isPicture, isRunning, leafAfter, pathTo, stopped, titleOf, withTurn, type Answer, type AttachedFile, type Conversation, type Message, type Turn } from "./tree";

const FLUSH_MS = 40; // tokens may arrive faster than a page can be drawn
const SAVE_MS = 1000;

interface Live {
  conversation: string;
  shown: Signal<Answer>;
  ended: AbortController;
  /** Keeps what there is of the answer, as stopped. */
  close: () => void;
}

// The running answers of this tab, by id. Only the view of each changes with its tokens.
const live = new Map<string, Live>();

/** The answer with the tokens so far. */
export function latest(answer: Answer): Answer {
  return live.get(answer.id)?.shown.value ?? answer;
}

/** True if this tab receives the answer. */
export function isHere(id: string): boolean {
  return live.has(id);
}

/** Sends a message at the end of a conversation, or of a new one (null), and requests the answer. */
export async function say(conversation: Conversation | null, text: string, files: AttachedFile[], model: string): Promise<void> {
  changeSettings({ model });
  const message: Message = { id: newId(), parent: conversation?.leaf ?? null, role: "user", text, files };
  if (conversation) change(conversation.id, (before) => withTurn(before, message));
  await answer(conversation?.id ?? begin(titleOf(message), message), message.id, model);
}

/** Sends another version of a message, and requests the answer. */
export async function sayAgain(conversation: Conversation, old: Message, text: string, model: string): Promise<void> {
  const message: Message = { ...old, id: newId(), text };
  change(conversation.id, (before) => withTurn(before, message));
  await answer(conversation.id, message.id, model);
}

/** Requests another version of an answer. */
export async function regenerate(conversation: Conversation, old: Answer, model: string): Promise<void> {
  await answer(conversation.id, old.parent, model);
}

/** Sends the results of the tools, with which the model continues. */
export async function giveBack(conversation: Conversation, turn: Answer, results: Map<string, string>, model: string): Promise<void> {
  putTurn(conversation.id, { ...turn, calls: turn.calls.map((call) => ({ ...call, result: results.get(call.id) ?? call.result })) });
  await answer(conversation.id, turn.id, model);
}

/** Shows another version of a turn, with what followed it. */
export function show(conversation: Conversation, id: string): void {
  change(conversation.id, (before) => ({ ...before, leaf: leafAfter(before, id) }));
}

/** Stops the running answers of a conversation. */
export function stop(conversation: string): void {
  for (const each of live.values()) if (each.conversation === conversation) each.ended.abort();
}

async function answer(id: string, parent: string | null, model: string): Promise<void> {
  const conversation = conversations.peek().get(id);
  if (!conversation || isRunning(conversation)) return;
  const path = pathTo(conversation, parent);
  const request = requestFor(model, path, settings.peek());
  let now: Answer = {
    id: newId(), parent, role: "assistant", model, settings: settings.peek(), text: "", reasoning: "", calls: [],
    state: "running", failure: null, finish: FinishReason.UNSPECIFIED, askedAt: performance.now(), firstAt: null,
    lastAt: null, tokens: null, promptTokens: null,
  };
  const [shown, ended] = [signal(now), new AbortController()];
  live.set(now.id, { conversation: id, shown, ended, close: () => putTurn(id, stopped(now)) });
  change(id, (before) => withTurn(before, now));
  let [flush, save] = [0, 0];
  const draw = () => {
    flush = 0;
    shown.value = now;
    save ||= window.setTimeout(() => {
      save = 0;
      putTurn(id, now);
    }, SAVE_MS);
  };
  try {
    for await (const event of stream(ChatService.method.streamChatCompletion, [request], ended.signal)) {
      now = after(now, event);
      flush ||= window.setTimeout(draw, FLUSH_MS);
    }
    now = { ...now, state: "done" };
  } catch (error) {
    const explained = sizeRefused(error, pictureBytes(path), "ALLM_MAX_BODY_BYTES", "Start a new conversation with fewer pictures");
    const { kind, sentence, requestId } = asFailure(explained, ended.signal.aborted);
    now = { ...now, state: "failed", failure: { kind, sentence, requestId } };
  }
  [flush, save].forEach((timer) => clearTimeout(timer));
  live.delete(now.id);
  putTurn(id, now);
}

function pictureBytes(path: readonly Turn[]): number {
  return filesOf(path).reduce((sum, file) => sum + (isPicture(file) ? file.url.length : 0), 0);
}

function after(now: Answer, { event }: StreamChatCompletionResponse): Answer {
  if (event.case === "started") return { ...now, model: event.value.model };
  if (event.case === "finished") {
    const usage = event.value.usage;
    return { ...now, finish: event.value.finishReason, tokens: usage?.completionTokens ?? null, promptTokens: usage?.promptTokens ?? null };
  }
  if (event.case !== "delta") return now;
  const timed = { ...now, firstAt: now.firstAt ?? performance.now(), lastAt: performance.now() };
  const { content } = event.value;
  if (content.case === "text") return { ...timed, text: now.text + content.value };
  if (content.case === "reasoning") return { ...timed, reasoning: now.reasoning + content.value };
  if (content.case === "toolCall") {
    const { index, id, name, argumentsJson } = content.value;
    const calls = [...now.calls];
    const call = calls[index] ?? { id, name, args: "", result: null };
    calls[index] = { ...call, args: call.args + argumentsJson };
    return { ...timed, calls };
  }
  return timed;
}

followTabs((id) => [...live.values()].some(({ conversation }) => conversation === id));
endLostAnswers(isHere);
// A page that closes keeps what it has of an answer.
addEventListener("pagehide", () => live.forEach(({ conversation, ended, close }) => {
  ended.abort();
  close();
  saveNow(conversation);
}));
