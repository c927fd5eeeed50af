// The conversation of this tab, and the requests for its answers.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { computed, signal } from "@preact/signals";
import { ChatRole, FinishReason, ToolChoice_Mode, type ChatMessageSchema } from "../../generated/allm/text/v1/chat_pb";
import { ChatService, type StreamChatCompletionRequestSchema, type StreamChatCompletionResponse } from "../../generated/allm/text/v1/chat_service_pb";
import { asFailure, type Failure } from "../failure";
import { stream } from "../grpc_web";
import { readTools, sampling, settings, type Settings } from "./settings";

type Message = MessageInitShape<typeof ChatMessageSchema>;
export type Request = Omit<MessageInitShape<typeof StreamChatCompletionRequestSchema>, "$typeName"> & { messages: Message[] };

/** A tool call, and its result as the user entered it. */
export interface Call {
  id: string;
  name: string;
  args: string;
  result: string | null;
}

/** A model's answer; times are from `performance.now()`, in milliseconds. */
export interface Answer {
  role: "assistant";
  model: string;
  text: string;
  reasoning: string;
  calls: Call[];
  state: "running" | "done" | "failed";
  failure: Failure | null;
  finish: FinishReason;
  askedAt: number;
  firstAt: number | null;
  lastAt: number | null;
  tokens: number | null;
  promptTokens: number | null;
  request: Request;
}

export type Turn = { role: "user"; text: string } | Answer;

const FLUSH_MS = 40;
const CHOICES = { auto: ToolChoice_Mode.AUTO, required: ToolChoice_Mode.REQUIRED, none: ToolChoice_Mode.NONE };

export const turns = signal<readonly Turn[]>([]);
export const running = computed(() => turns.value.some((turn) => turn.role === "assistant" && turn.state === "running"));
let ending: AbortController | null = null;

/** Sends a user message and requests the answer. */
export async function say(text: string, model: string): Promise<void> {
  turns.value = [...turns.value, { role: "user", text }];
  await answer(model);
}

/** Requests another answer to the last message. */
export async function again(model: string): Promise<void> {
  const all = [...turns.value];
  if (all.at(-1)?.role === "assistant") all.pop();
  turns.value = all;
  await answer(model);
}

/** Sends the results of the tools, with which the model continues. */
export async function giveBack(at: number, results: Map<string, string>, model: string): Promise<void> {
  const turn = turns.value[at];
  if (turn?.role !== "assistant") return;
  put(at, { ...turn, calls: turn.calls.map((call) => ({ ...call, result: results.get(call.id) ?? call.result })) });
  await answer(model);
}

/** Stops the running answer. */
export function stop(): void {
  ending?.abort();
}

/** Clears the conversation. */
export function clear(): void {
  stop();
  ending = null;
  turns.value = [];
}

/** Makes the typed request for the answer after `before`. */
export function requestFor(model: string, before: readonly Turn[], form: Settings): Request {
  const messages: Message[] = [];
  if (form.system.trim()) messages.push({ role: ChatRole.SYSTEM, content: text(form.system) });
  for (const turn of before) {
    if (turn.role === "user") messages.push({ role: ChatRole.USER, content: text(turn.text) });
    else messages.push(...spoken(turn));
  }
  return {
    model,
    messages,
    sampling: sampling(form),
    tools: readTools(form.tools).map(({ name, description, parameters, strict }) => ({ name, description, strict, parametersJson: JSON.stringify(parameters) })),
    toolChoice: form.tools.trim() ? { mode: CHOICES[form.toolChoice] } : undefined,
    outputFormat: form.schema.trim() ? { format: { case: "jsonSchema", value: form.schema } } : undefined,
    reasoningEffort: form.effort,
  };
}

function spoken(turn: Answer): Message[] {
  const calls = turn.calls.filter((call) => call.result !== null);
  if (!turn.text && !calls.length) return [];
  return [
    {
      role: ChatRole.ASSISTANT,
      content: turn.text ? text(turn.text) : [],
      toolCalls: calls.map((call) => ({ id: call.id, name: call.name, argumentsJson: call.args })),
    },
    ...calls.map((call) => ({ role: ChatRole.TOOL, content: text(call.result!), toolCallId: call.id })),
  ];
}

function text(value: string) {
  return [{ part: { case: "text" as const, value } }];
}

async function answer(model: string): Promise<void> {
  stop();
  const ended = (ending = new AbortController());
  const at = turns.value.length;
  const request = requestFor(model, turns.value, settings.value);
  let now: Answer = {
    role: "assistant", model, text: "", reasoning: "", calls: [], state: "running", failure: null,
    finish: FinishReason.UNSPECIFIED, askedAt: performance.now(), firstAt: null, lastAt: null, tokens: null,
    promptTokens: null, request,
  };
  turns.value = [...turns.value, now];
  // Tokens may arrive faster than a page can be drawn.
  let flush = 0;
  const show = () => {
    flush = 0;
    if (ending === ended) put(at, now); // otherwise it was cleared meanwhile
  };
  try {
    for await (const event of stream(ChatService.method.streamChatCompletion, [request], ended.signal)) {
      now = after(now, event);
      flush ||= window.setTimeout(show, FLUSH_MS);
    }
    now = { ...now, state: "done" };
  } catch (error) {
    now = { ...now, state: "failed", failure: asFailure(error, ended.signal.aborted) };
  }
  clearTimeout(flush);
  show();
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

function put(at: number, turn: Turn): void {
  turns.value = turns.value.map((each, place) => (place === at ? turn : each));
}
