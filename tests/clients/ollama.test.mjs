// Ollama's official package for Node, unmodified, against a running allm. Run by test_ollama_node.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Ollama } from "ollama";

const { ALLM_HOST: host, ALLM_MODEL: model, ALLM_ENCODER: encoder } = process.env;
const client = new Ollama({ host });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const options = { temperature: 0, num_predict: 12 };

test("answers", async () => {
  const response = await client.chat({ model, messages, options });
  assert.match(response.message.content, /Paris/);
  assert.equal(response.done, true);
  assert.ok(response.eval_count > 0 && response.total_duration > 0);
});

test("streams to a last part", async () => {
  let text = "";
  let last;
  for await (const part of await client.chat({ model: `${model}:latest`, messages, options, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert.match(text, /Paris/);
  assert.ok(last.done);
  assert.ok(["stop", "length"].includes(last.done_reason));
});

test("generates", async () => {
  const { response } = await client.generate({ model, prompt: "The capital of France is", raw: true, options });
  assert.match(response, /Paris/);
});

test("embeds", async () => {
  const { embeddings } = await client.embed({ model: encoder, input: ["a", "b"] });
  assert.equal(embeddings.length, 2);
  const { embedding } = await client.embeddings({ model: encoder, prompt: "a" });
  assert.equal(embedding.length, embeddings[0].length);
});

test("lists and shows models", async () => {
  const { models } = await client.list();
  assert.ok(models.some(({ name }) => name === `${model}:latest`));
  assert.ok(Array.isArray((await client.ps()).models));
  assert.deepEqual((await client.show({ model })).capabilities, ["completion", "tools"]);
});

test("raises its own errors", async () => {
  for (const stream of [false, true]) {
    await assert.rejects(client.chat({ model: "nobody", messages, stream }), (error) => {
      assert.equal(error.name, "ResponseError");
      assert.equal(error.status_code, 404);
      assert.match(error.message, /nobody/);
      return true;
    });
  }
});
