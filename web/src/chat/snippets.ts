// Code snippets that send a request of the chat. They read its pictures from files: `picture-1.png`, `picture-2.jpeg`.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { ChatRole, type ContentPartSchema } from "../../generated/allm/text/v1/chat_pb";
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

// A picture in a body, until `withPictures` writes how the language reads its file.
const PICTURE = "\0picture-";
const WRITTEN_PICTURE = /"\\u0000(picture-\d+\.(\w+))"/g;

export function snippet(language: Language, request: Request, form: Settings): string {
  const numbered = withFileNames(request);
  const body = restBody(numbered, form);
  if (language === "curl") return curl(body);
  if (language === "Python") return python(body);
  if (language === "Node") return node(body);
  return grpc(numbered, form);
}

type Body = Record<string, unknown>;
type Part = MessageInitShape<typeof ContentPartSchema>;

/** The request with names of files in place of the pictures' data. */
function withFileNames(request: Request): Request {
  let count = 0;
  const named = (part: Part): Part => {
    const url = pictureOf(part);
    if (url === undefined) return part;
    const value = `${PICTURE}${(count += 1)}.${/^data:image\/(\w+)/.exec(url)?.[1] ?? "png"}`;
    return { part: { case: "image", value: { source: { case: "url", value } } } };
  };
  return { ...request, messages: request.messages.map((message) => ({ ...message, content: message.content?.map(named) })) as Request["messages"] };
}

function pictureOf({ part }: Part): string | undefined {
  return part?.case === "image" && part.value.source?.case === "url" ? part.value.source.value : undefined;
}

function withPictures(code: string, read: (file: string, type: string) => string): string {
  return code.replace(WRITTEN_PICTURE, (_, file: string, type: string) => read(file, type));
}

/** A message's content: its text, or a list of parts if it has pictures. */
function restContent(parts: readonly Part[]): string | Body[] | null {
  if (parts.every((part) => pictureOf(part) === undefined)) return parts.map(({ part }) => part?.value ?? "").join("") || null;
  return parts.map((part) => {
    const url = pictureOf(part);
    return url === undefined ? { type: "text", text: part.part?.value } : { type: "image_url", image_url: { url } };
  });
}

function restBody(request: Request, form: Settings): Body {
  const messages = (request.messages ?? []).map((message) => {
    const calls = (message.toolCalls ?? []).map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.argumentsJson } }));
    return {
      role: ROLES[message.role ?? 0],
      content: restContent(message.content ?? []),
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
  const authorization = key.value ? ` \\\n  -H "authorization: Bearer $ALLM_API_KEY"` : "";
  const before = `curl --no-buffer ${location.origin}/v1/chat/completions \\\n  -H 'content-type: application/json'${authorization} \\\n `;
  return shell(before, JSON.stringify(body, null, 2), "", "@-");
}

/** A command with the JSON as an argument; with pictures, which an argument cannot hold, as its standard input. */
function shell(before: string, json: string, after: string, standardInput: string): string {
  if (json.search(WRITTEN_PICTURE) < 0) return `${before} -d '${json.replaceAll("'", "'\\''")}'${after}`;
  const here = json.replace(new RegExp(`${WRITTEN_PICTURE.source}|[\\\\$\`]`, "g"), (found, file?: string, type?: string) =>
    file ? `"data:image/${type};base64,$(base64 < ${file} | tr -d '\\n')"` : `\\${found}`);
  return `${before} -d ${standardInput}${after} <<EOF\n${here}\nEOF`;
}

function python(body: Body): string {
  const { extra, rest } = split(body);
  const lines = Object.entries(rest).map(([name, value]) => `    ${name}=${literal(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra)},`);
  const pictures = lines.some((line) => line.search(WRITTEN_PICTURE) >= 0);
  const picture = (file: string, type: string) => `"data:image/${type};base64," + b64encode(open("${file}", "rb").read()).decode()`;
  const imports = [...(key.value ? ["import os"] : []), ...(pictures ? ["from base64 import b64encode"] : [])];
  return [
    ...imports,
    ...(imports.length ? [""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${location.origin}/v1`)}, api_key=${key.value ? 'os.environ["ALLM_API_KEY"]' : '"unused"'})`,
    "for chunk in client.chat.completions.create(",
    ...lines.map((line) => withPictures(line, picture)),
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
  const json = JSON.stringify(body, null, 2);
  const code = withPictures(json, (file, type) => `"data:image/${type};base64," + readFileSync("${file}", "base64")`);
  return [
    ...(code === json ? [] : ['import { readFileSync } from "node:fs";']),
    'import OpenAI from "openai";',
    "",
    `const client = new OpenAI({ baseURL: ${JSON.stringify(`${location.origin}/v1`)}, apiKey: ${key.value ? "process.env.ALLM_API_KEY" : '"unused"'} });`,
    `const stream = await client.chat.completions.create(${code});`,
    'for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");',
  ].join("\n");
}

function grpc(request: Request, form: Settings): string {
  const given = Object.fromEntries(Object.entries(sampling(form)).filter(([, value]) => value !== undefined && !(Array.isArray(value) && !value.length)));
  const message = {
    model: request.model,
    messages: (request.messages ?? []).map((each) => ({
      role: `CHAT_ROLE_${ROLES[each.role ?? 0]!.toUpperCase()}`,
      content: (each.content ?? []).map((piece) => (pictureOf(piece) === undefined ? { text: piece.part?.value } : { image: { url: pictureOf(piece) } })),
      ...(each.toolCalls?.length ? { toolCalls: each.toolCalls } : {}),
      ...(each.toolCallId ? { toolCallId: each.toolCallId } : {}),
    })),
    ...(Object.keys(given).length ? { sampling: given } : {}),
    ...(request.tools?.length ? { tools: request.tools, toolChoice: { mode: `MODE_${form.toolChoice.toUpperCase()}` } } : {}),
    ...(form.schema.trim() ? { outputFormat: { jsonSchema: form.schema } } : {}),
    ...(form.effort ? { reasoningEffort: form.effort } : {}),
  };
  const body = JSON.stringify(message, (_, value) => (typeof value === "bigint" ? String(value) : value), 2);
  const plain = location.protocol === "http:" ? " -plaintext" : "";
  const authorization = key.value ? ` -H "authorization: Bearer $ALLM_API_KEY"` : "";
  const host = `${location.host}${location.port ? "" : location.protocol === "http:" ? ":80" : ":443"}`;
  return shell(`grpcurl${plain}${authorization}`, body, ` \\\n  ${host} allm.text.v1.ChatService/StreamChatCompletion`, "@");
}

function split(body: Body): { extra: Body; rest: Body } {
  const entries = Object.entries(body);
  return {
    extra: Object.fromEntries(entries.filter(([name]) => EXTENSIONS.includes(name))),
    rest: Object.fromEntries(entries.filter(([name]) => !EXTENSIONS.includes(name))),
  };
}
