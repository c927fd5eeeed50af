// The official `openai` package for Node, unmodified, against a running allm. Run by test_openai_node.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const { ALLM_BASE_URL: baseURL, ALLM_MODEL: model } = process.env;
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];

test("lists models", async () => {
  const ids = [];
  for await (const entry of client.models.list()) {
    assert.equal(entry.object, "model");
    ids.push(entry.id);
  }
  assert.ok(ids.includes(model), ids.join());
});

test("retrieves a model", async () => {
  assert.equal((await client.models.retrieve(model)).id, model);
});

test("answers", async () => {
  const { data, response } = await client.chat.completions
    .create({ model, messages, temperature: 0, max_tokens: 32 })
    .withResponse();
  assert.equal(data.object, "chat.completion");
  assert.match(data.choices[0].message.content, /Paris/);
  assert.equal(data.choices[0].finish_reason, "stop");
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
  assert.ok(response.headers.get("x-request-id"));
});

test("streams, with usage", async () => {
  const stream = await client.chat.completions.create({
    model,
    messages,
    temperature: 0,
    max_tokens: 32,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  const reasons = [];
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    if (chunk.choices[0]?.finish_reason) reasons.push(chunk.choices[0].finish_reason);
    usage = chunk.usage ?? usage;
  }
  assert.match(text, /Paris/);
  assert.deepEqual(reasons, ["stop"]);
  assert.ok(usage.completion_tokens > 0);
});

test("the stream helper puts the answer together", async () => {
  const runner = client.chat.completions.stream({ model, messages, temperature: 0, max_tokens: 32 });
  assert.match(await runner.finalContent(), /Paris/);
});

test("a stream can be left", async () => {
  const stream = await client.chat.completions.create({ model, messages, max_tokens: 2000, stream: true });
  for await (const _ of stream) break;
  assert.ok(stream.controller.signal.aborted);
});

test("an unknown model is NotFoundError", async () => {
  const asked = client.chat.completions.create({ model: "no/such-model", messages });
  await assert.rejects(asked, (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    assert.match(error.message, /no\/such-model/);
    return true;
  });
  await assert.rejects(client.models.retrieve("no/such-model"), OpenAI.NotFoundError);
});

for (const [param, value] of [
  ["temperature", 5],
  ["max_tokens", -1],
  ["messages", []],
]) {
  test(`a bad ${param} is BadRequestError`, async () => {
    const asked = client.chat.completions.create({ model, messages, [param]: value });
    await assert.rejects(asked, (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.type, "invalid_request_error");
      assert.equal(error.param, param);
      return true;
    });
  });
}

test("a body over the limit is told as such", async () => {
  const content = "x".repeat(40 * 1024 * 1024);
  const asked = client.chat.completions.create({ model, messages: [{ role: "user", content }] });
  await assert.rejects(asked, (error) => {
    assert.equal(error.status, 413);
    assert.match(error.message, /ALLM_MAX_BODY_BYTES/);
    return true;
  });
});
