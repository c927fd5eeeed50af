// Anthropic's official package for Node, unmodified, against a running allm. Run by test_anthropic_node.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const { ALLM_BASE_URL: baseURL, ALLM_MODEL: model } = process.env;
const client = new Anthropic({ baseURL, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const tools = [
  {
    name: "get_weather",
    input_schema: { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"] },
  },
];

test("answers", async () => {
  const { data, response } = await client.messages
    .create({ model, messages, max_tokens: 32, temperature: 0 })
    .withResponse();
  assert.match(data.content[0].text, /Paris/);
  assert.equal(data.stop_reason, "end_turn");
  assert.ok(response.headers.get("request-id"));
});

test("streams, and puts the message together", async () => {
  const stream = client.messages.stream({ model, messages, max_tokens: 32, temperature: 0 });
  let text = "";
  stream.on("text", (delta) => {
    text += delta;
  });
  const message = await stream.finalMessage();
  assert.match(text, /Paris/);
  assert.equal(message.content[0].text, text);
  assert.equal(message.stop_reason, "end_turn");
});

test("streams a call, and takes its result", async () => {
  const tool_choice = { type: "tool", name: "get_weather", disable_parallel_tool_use: true };
  const asked = { model, messages, tools, max_tokens: 100, temperature: 0 };
  const called = await client.messages.stream({ ...asked, tool_choice }).finalMessage();
  assert.equal(called.stop_reason, "tool_use");
  const [call] = called.content;
  assert.match(call.input.city, /Paris|Rome/);
  const result = { type: "tool_result", tool_use_id: call.id, content: "Sunny." };
  const turns = [...messages, { role: "assistant", content: called.content }, { role: "user", content: [result] }];
  const { input_tokens } = await client.messages.countTokens({ model, tools, messages: turns });
  assert.ok(input_tokens > (await client.messages.countTokens({ model, tools, messages })).input_tokens);
});

test("lists models", async () => {
  const ids = [];
  for await (const entry of client.models.list({ limit: 1 })) ids.push(entry.id);
  assert.ok(ids.includes(model), ids.join());
});

test("raises its own errors", async () => {
  await assert.rejects(client.messages.create({ model: "nobody", messages, max_tokens: 1 }), (error) => {
    assert.ok(error instanceof Anthropic.NotFoundError);
    assert.equal(error.error.error.type, "not_found_error");
    assert.match(error.message, /nobody/);
    return true;
  });
});
