// The Vercel AI SDK, unmodified, against a running allm. Run by test_vercel_node.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

const { ALLM_BASE_URL: baseURL, ALLM_MODEL: id } = process.env;
const allm = createOpenAICompatible({ name: "allm", baseURL, includeUsage: true, supportsStructuredOutputs: true });
const model = allm(id);

const Weather = z.object({ city: z.enum(["Paris", "London"]), days: z.int().min(1).max(9) });
const question = { role: "user", content: "What is the weather in Paris?" };
const settings = { model, temperature: 0, maxOutputTokens: 60, maxRetries: 0 };

// The SDK asks, runs the tool and goes on with its result. The model is small, so the first step's call is demanded,
// and later steps may make none.
const conversation = (messages) => ({
  ...settings,
  messages,
  tools: {
    get_weather: tool({
      description: "Weather of a city",
      inputSchema: Weather,
      strict: true,
      execute: async ({ city }) => `22 degrees in ${city}`,
    }),
  },
  prepareStep: ({ stepNumber }) => ({
    toolChoice: stepNumber === 0 ? { type: "tool", toolName: "get_weather" } : "none",
  }),
  stopWhen: isStepCount(3),
});

function checkSteps([asked, answered, ...more]) {
  assert.equal(more.length, 0);
  assert.equal(asked.finishReason, "tool-calls");
  const [call, ...others] = asked.toolCalls;
  assert.equal(others.length, 0);
  assert.equal(call.toolName, "get_weather");
  Weather.parse(call.input);
  assert.deepEqual(
    asked.toolResults.map(({ toolCallId, output }) => [toolCallId, output]),
    [[call.toolCallId, `22 degrees in ${call.input.city}`]],
  );
  assert.equal(answered.toolCalls.length, 0);
  assert.ok(answered.text);
  for (const step of [asked, answered]) {
    assert.deepEqual(step.warnings ?? [], []);
    assert.ok(step.usage.inputTokens > 0 && step.usage.outputTokens > 0);
  }
}

test("a conversation with a tool", async () => {
  const first = await generateText(conversation([question]));
  checkSteps(first.steps);
  const history = [question, ...first.responseMessages, { role: "user", content: "And in London?" }];
  checkSteps((await generateText(conversation(history))).steps);
});

test("a streamed conversation with a tool", async () => {
  const first = streamText(conversation([question]));
  const parts = await Array.fromAsync(first.stream);
  const kinds = parts.map(({ type }) => type);
  assert.ok(!kinds.includes("error"), JSON.stringify(parts.filter(({ type }) => type === "error")));
  assert.ok(kinds.filter((kind) => kind === "tool-input-delta").length > 3, "arguments stream");
  assert.ok(kinds.filter((kind) => kind === "text-delta").length > 1, "text streams");
  const deltas = parts.filter(({ type }) => type === "tool-input-delta").map(({ delta }) => delta);
  const steps = await first.steps;
  checkSteps(steps);
  assert.deepEqual(JSON.parse(deltas.join("")), steps[0].toolCalls[0].input);
  const history = [question, ...(await first.responseMessages), { role: "user", content: "And in London?" }];
  const second = streamText(conversation(history));
  await second.consumeStream();
  checkSteps(await second.steps);
});

test("an object by its schema", async () => {
  const { output, warnings } = await generateText({
    ...settings,
    messages: [question],
    output: Output.object({ schema: Weather }),
  });
  Weather.parse(output);
  assert.deepEqual(warnings ?? [], []);
});

test("a streamed object by its schema", async () => {
  const result = streamText({ ...settings, messages: [question], output: Output.object({ schema: Weather }) });
  const partial = await Array.fromAsync(result.partialOutputStream);
  assert.deepEqual(partial.at(-1), await result.output);
  Weather.parse(await result.output);
});

test("an unknown model is told as such", async () => {
  await assert.rejects(generateText({ ...settings, model: allm("no/such-model"), messages: [question] }), (error) => {
    assert.equal(error.statusCode, 404);
    assert.match(error.message, /no\/such-model/);
    return true;
  });
});
