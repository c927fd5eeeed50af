// The typed request for an answer.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { ChatRole, ToolChoice_Mode, type ChatMessageSchema } from "../../generated/allm/text/v1/chat_pb";
import type { StreamChatCompletionRequestSchema } from "../../generated/allm/text/v1/chat_service_pb";
import { readTools, sampling, type Settings } from "./settings";
import { isPicture, type Answer, type Message as UserMessage, type TextFile, type Turn } from "./tree";

type Message = MessageInitShape<typeof ChatMessageSchema>;
export type Request = Omit<MessageInitShape<typeof StreamChatCompletionRequestSchema>, "$typeName"> & { messages: Message[] };

const CHOICES = { auto: ToolChoice_Mode.AUTO, required: ToolChoice_Mode.REQUIRED, none: ToolChoice_Mode.NONE };

/** Makes the request for the answer after `before`. */
export function requestFor(model: string, before: readonly Turn[], form: Settings): Request {
  const messages: Message[] = [];
  if (form.system.trim()) messages.push({ role: ChatRole.SYSTEM, content: text(form.system) });
  for (const turn of before) {
    if (turn.role === "user") messages.push({ role: ChatRole.USER, content: content(turn) });
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

/** The pictures of a message, and then its text with those of its files. */
function content({ files, text: said }: UserMessage) {
  const pictures = files.filter(isPicture).map(({ url }) => ({ part: { case: "image" as const, value: { source: { case: "url" as const, value: url } } } }));
  const whole = files.map((file) => (isPicture(file) ? "" : quoted(file))).join("") + said;
  return [...pictures, ...(whole ? text(whole) : [])];
}

/** A file as models read it: its name, and its text in a fence that the text does not contain. */
function quoted({ name, text: content }: TextFile): string {
  const ticks = content.match(/`{3,}/g) ?? [];
  const fence = "`".repeat(Math.max(3, ...ticks.map((each) => each.length + 1)));
  return `File ${name}:\n${fence}\n${content.replace(/\n$/, "")}\n${fence}\n\n`;
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
