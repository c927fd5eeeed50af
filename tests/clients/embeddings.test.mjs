// The official `openai` package for Node and @grpc/grpc-js, embedding with a running allm. Run by
// test_embeddings_node.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import OpenAI from "openai";

const { ALLM_BASE_URL: baseURL, ALLM_GRPC: address, ALLM_MODEL: model, ALLM_SIZE, ALLM_PROTOS } = process.env;
const size = Number(ALLM_SIZE);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const input = ["A man is eating food.", "Somebody eats a meal.", "The stock market fell sharply on Tuesday."];
const dot = (one, other) => one.reduce((sum, value, at) => sum + value * other[at], 0);

test("embeds, by the SDK's default in base64", async () => {
  const { data, usage, model: by } = await client.embeddings.create({ model, input });
  assert.equal(by, model);
  assert.deepEqual(data.map((one) => [one.index, one.embedding.length]), [[0, size], [1, size], [2, size]]);
  assert.equal(usage.prompt_tokens, usage.total_tokens);
  const [first, second, third] = data.map((one) => one.embedding);
  assert.ok(Math.abs(dot(first, first) - 1) < 1e-4);
  assert.ok(dot(first, second) > 0.6);
  assert.ok(dot(first, third) < 0.2);
});

test("floats say the same as base64", async () => {
  const [packed, floats] = await Promise.all(
    ["base64", "float"].map((encoding_format) => client.embeddings.create({ model, input: "hello", encoding_format })),
  );
  const bytes = Buffer.from(packed.data[0].embedding, "base64");
  floats.data[0].embedding.forEach((value, at) => assert.ok(Math.abs(value - bytes.readFloatLE(4 * at)) < 1e-5));
});

test("a refusal names the parameter", async () => {
  await assert.rejects(client.embeddings.create({ model, input: "a", dimensions: size + 1 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "dimensions");
    return true;
  });
});

test("the typed API says the same", async () => {
  const definition = loader.loadSync("allm/text/v1/embedding_service.proto", { includeDirs: [ALLM_PROTOS] });
  const { allm } = grpc.loadPackageDefinition(definition);
  const service = new allm.text.v1.EmbeddingService(address, grpc.credentials.createInsecure());
  const answer = await new Promise((resolve, reject) =>
    service.CreateEmbeddings({ model, inputs: input.map((text) => ({ text })) }, (error, reply) =>
      error ? reject(error) : resolve(reply),
    ),
  );
  service.close();
  const { data } = await client.embeddings.create({ model, input });
  answer.embeddings.forEach(({ vector }, at) =>
    vector.forEach((value, place) => assert.ok(Math.abs(value - data[at].embedding[place]) < 1e-5)),
  );
});
