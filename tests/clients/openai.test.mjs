// The official `openai` package for Node, unmodified, against a running allm. Run by test_openai_node.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

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

// --- A conversation with tools. The model is small, so the call is demanded; its arguments follow the schema.

const Weather = z.object({ city: z.enum(["Paris", "London"]), days: z.int().min(1).max(9) });
const question = { role: "user", content: "What is the weather in Paris?" };
const named = { type: "function", function: { name: "get_weather" } };
const weather = (asked = []) =>
  zodFunction({
    name: "get_weather",
    description: "Weather of a city",
    parameters: Weather,
    function: (input) => {
      asked.push(input); // parsed by the SDK
      return `22 degrees in ${input.city}`;
    },
  });
const goOn = (messages) => ({ model, messages, tools: [weather()], tool_choice: "none", temperature: 0, max_tokens: 30 });

test("a conversation goes on with the tool's result", async () => {
  const first = await client.chat.completions.parse({
    model,
    messages: [question],
    tools: [weather()],
    tool_choice: "required",
    parallel_tool_calls: false,
    temperature: 0,
  });
  const { message, finish_reason } = first.choices[0];
  assert.equal(finish_reason, "tool_calls");
  assert.equal(message.content, null);
  const [call, ...more] = message.tool_calls;
  assert.equal(more.length, 0);
  Weather.parse(call.function.parsed_arguments);
  const history = [question, message, { role: "tool", tool_call_id: call.id, content: "22 degrees" }];
  const second = await client.chat.completions.create(goOn(history));
  assert.ok(second.choices[0].message.content);
  assert.equal(second.choices[0].message.tool_calls, undefined);
  history.push(second.choices[0].message, { role: "user", content: "And tomorrow?" });
  assert.ok((await client.chat.completions.create(goOn(history))).choices[0].message.content);
});

test("a streamed conversation has calls with indexes", async () => {
  const stream = await client.chat.completions.create({
    model,
    messages: [question],
    tools: [weather()],
    tool_choice: named,
    temperature: 0,
    stream: true,
  });
  const deltas = [];
  let reason = null;
  for await (const { choices } of stream) {
    assert.ok(!choices[0].delta.content);
    deltas.push(...(choices[0].delta.tool_calls ?? []));
    reason = choices[0].finish_reason ?? reason;
  }
  assert.equal(reason, "tool_calls");
  assert.ok(deltas.length > 3, "arguments stream");
  assert.deepEqual([...new Set(deltas.map(({ index }) => index))], [0]);
  assert.deepEqual([deltas[0].type, deltas[0].function.name], ["function", "get_weather"]);
  assert.ok(deltas[0].id);
  assert.ok(deltas.slice(1).every(({ id }) => id === undefined));
  const text = deltas.map((delta) => delta.function.arguments ?? "").join("");
  Weather.parse(JSON.parse(text));
  const call = { id: deltas[0].id, type: "function", function: { name: "get_weather", arguments: text } };
  const result = { role: "tool", tool_call_id: call.id, content: [{ type: "text", text: "22 degrees" }] };
  const runner = client.chat.completions.stream(goOn([question, { role: "assistant", tool_calls: [call] }, result]));
  assert.ok(await runner.finalContent());
});

for (const stream of [false, true]) {
  test(`the tool runner calls the tool${stream ? ", streamed" : ""}`, async () => {
    const asked = [];
    const runner = client.chat.completions.runTools({
      model,
      messages: [question],
      tools: [weather(asked)],
      tool_choice: named, // the runner ends once this has been called
      temperature: 0,
      stream,
    });
    assert.equal(await runner.finalFunctionToolCallResult(), `22 degrees in ${asked[0].city}`);
    assert.equal(asked.length, 1);
    Weather.parse(asked[0]);
    const answer = client.chat.completions.runTools({ ...goOn(runner.messages), stream });
    assert.ok(await answer.finalContent());
  });
}

test("the structured-output helper parses the answer", async () => {
  const wanted = { model, response_format: zodResponseFormat(Weather, "weather"), temperature: 0 };
  const answer = await client.chat.completions.parse({ ...wanted, messages: [question] });
  Weather.parse(answer.choices[0].message.parsed);
  const streamed = await client.chat.completions.stream({ ...wanted, messages: [question] }).finalChatCompletion();
  Weather.parse(streamed.choices[0].message.parsed);
});
