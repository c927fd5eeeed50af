// Code snippets that send a request of the chat.

import { ChatRole } from "../../generated/allm/text/v1/chat_pb";
import { key } from "../key";
import type { Request } from "./request";
import { NUMBERS, sampling, type Settings, readTools } from "./settings";

export const LANGUAGES = ["curl", "Python", "Node", "gRPC"] as const;
export type Language = (typeof LANGUAGES)[number];

const ROLES: Record<number, string> = {
  [ChatRole.SYSTEM]: "system", [ChatRole.USER]: "user", [ChatRole.ASSISTANT]: "assistant", [ChatRole.TOOL]: "tool",
};
// Parameters of the REST API that OpenAI's SDKs do not know.
const EXTENSIONS = ["top_k", "min_p"];

export function snippet(language: Language, request: Request, form: Settings): string {
  const body = restBody(request, form);
  if (language === "curl") return curl(body);
  if (language === "Python") return python(body);
  if (language === "Node") return node(body);
  return grpc(request, form);
}

type Body = Record<string, unknown>;

function restBody(request: Request, form: Settings): Body {
  const messages = (request.messages ?? []).map((message) => {
    const content = (message.content ?? []).map((piece) => piece.part?.value ?? "").join("");
    const calls = (message.toolCalls ?? []).map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.argumentsJson } }));
    return {
      role: ROLES[message.role ?? 0],
      content: content || null,
      ...(calls.length ? { tool_calls: calls } : {}),
      ...(message.toolCallId ? { tool_call_id: message.toolCallId } : {}),
    };
  });
  const tools = readTools(form.tools).map((tool) => ({ type: "function", function: tool }));
  return {
    model: request.model,
    messages,
    ...numbers(form),
    ...(form.stop ? { stop: form.stop.split("\n").filter(Boolean) } : {}),
    ...(form.effort ? { reasoning_effort: form.effort } : {}),
    ...(tools.length ? { tools, tool_choice: form.toolChoice } : {}),
    ...(form.schema.trim() ? { response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(form.schema) } } } : {}),
    stream: true,
  };
}

function numbers(form: Settings): Body {
  const found: Body = {};
  for (const name of Object.keys(NUMBERS) as (keyof typeof NUMBERS)[]) {
    if (form.numbers[name].trim()) found[name] = Number(form.numbers[name]);
  }
  return found;
}

function curl(body: Body): string {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const authorization = key.value ? ` \\\n  -H "authorization: Bearer $ALLM_API_KEY"` : "";
  return `curl --no-buffer ${location.origin}/v1/chat/completions \\\n  -H 'content-type: application/json'${authorization} \\\n  -d '${quoted}'`;
}

function python(body: Body): string {
  const { extra, rest } = split(body);
  const lines = Object.entries(rest).map(([name, value]) => `    ${name}=${literal(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra)},`);
  return [
    ...(key.value ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${location.origin}/v1`)}, api_key=${key.value ? 'os.environ["ALLM_API_KEY"]' : '"unused"'})`,
    "for chunk in client.chat.completions.create(",
    ...lines,
    "):",
    '    if chunk.choices:',
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
  ].join("\n");
}

/** Formats a value as a Python literal. */
function literal(value: unknown): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value as Body).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

function node(body: Body): string {
  return [
    'import OpenAI from "openai";',
    "",
    `const client = new OpenAI({ baseURL: ${JSON.stringify(`${location.origin}/v1`)}, apiKey: ${key.value ? "process.env.ALLM_API_KEY" : '"unused"'} });`,
    `const stream = await client.chat.completions.create(${JSON.stringify(body, null, 2)});`,
    'for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");',
  ].join("\n");
}

function grpc(request: Request, form: Settings): string {
  const given = Object.fromEntries(Object.entries(sampling(form)).filter(([, value]) => value !== undefined && !(Array.isArray(value) && !value.length)));
  const message = {
    model: request.model,
    messages: (request.messages ?? []).map((each) => ({
      role: `CHAT_ROLE_${ROLES[each.role ?? 0]!.toUpperCase()}`,
      content: (each.content ?? []).map((piece) => ({ text: piece.part?.value })),
      ...(each.toolCalls?.length ? { toolCalls: each.toolCalls } : {}),
      ...(each.toolCallId ? { toolCallId: each.toolCallId } : {}),
    })),
    ...(Object.keys(given).length ? { sampling: given } : {}),
    ...(request.tools?.length ? { tools: request.tools, toolChoice: { mode: `MODE_${form.toolChoice.toUpperCase()}` } } : {}),
    ...(form.schema.trim() ? { outputFormat: { jsonSchema: form.schema } } : {}),
    ...(form.effort ? { reasoningEffort: form.effort } : {}),
  };
  const body = JSON.stringify(message, (_, value) => (typeof value === "bigint" ? String(value) : value), 2).replaceAll("'", "'\\''");
  const plain = location.protocol === "http:" ? " -plaintext" : "";
  const authorization = key.value ? ` -H "authorization: Bearer $ALLM_API_KEY"` : "";
  return `grpcurl${plain}${authorization} -d '${body}' \\\n  ${location.host}${location.port ? "" : location.protocol === "http:" ? ":80" : ":443"} allm.text.v1.ChatService/StreamChatCompletion`;
}

function split(body: Body): { extra: Body; rest: Body } {
  const entries = Object.entries(body);
  return {
    extra: Object.fromEntries(entries.filter(([name]) => EXTENSIONS.includes(name))),
    rest: Object.fromEntries(entries.filter(([name]) => !EXTENSIONS.includes(name))),
  };
}
