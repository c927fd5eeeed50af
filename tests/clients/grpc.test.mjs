// A gRPC client in Node, made from the .proto files at run time, against a running allm. Run by test_grpc_node.py.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const { ALLM_GRPC: address, ALLM_MODEL: model, ALLM_PROTOS: folders } = process.env;
const files = ["allm/text/v1/chat_service.proto", "allm/models/v1/model_service.proto"];
const definition = protoLoader.loadSync(files, { includeDirs: folders.split(":"), enums: String, oneofs: true });
const { allm } = grpc.loadPackageDefinition(definition);
const insecure = grpc.credentials.createInsecure();
const chat = new allm.text.v1.ChatService(address, insecure);
const models = new allm.models.v1.ModelService(address, insecure);
after(() => {
  chat.close();
  models.close();
});

const messages = [{ role: "CHAT_ROLE_USER", content: [{ text: "What is the capital of France?" }] }];
const sampling = { temperature: 0, maxTokens: 32 };
const call = (client, method, request) =>
  new Promise((resolve, reject) =>
    client[method](request, (error, reply) => (error ? reject(error) : resolve(reply))),
  );

test("lists models with their state", async () => {
  const found = (await call(models, "ListModels", {})).models.find(({ id }) => id === model);
  assert.equal(found.modality, "MODALITY_TEXT");
  assert.match(found.state, /^MODEL_STATE_(READY|LOADED)$/);
});

test("answers", async () => {
  const reply = await call(chat, "CreateChatCompletion", { model, messages, sampling });
  const text = reply.choices[0].message.content.map((part) => part.text).join("");
  assert.match(text, /Paris/);
  assert.equal(reply.choices[0].finishReason, "FINISH_REASON_STOP");
});

test("streams token by token", async () => {
  const events = [];
  for await (const reply of chat.StreamChatCompletion({ model, messages, sampling })) events.push(reply);
  assert.equal(events[0].event, "started");
  assert.equal(events.at(-1).event, "finished");
  const deltas = events.slice(1, -1);
  assert.ok(deltas.length > 3, `${deltas.length} deltas`);
  assert.match(deltas.map(({ delta }) => delta.text).join(""), /Paris/);
  assert.equal(events.at(-1).finished.finishReason, "FINISH_REASON_STOP");
  assert.ok(events.at(-1).finished.usage.completionTokens > 3);
});

test("a stream can be cancelled", async () => {
  const stream = chat.StreamChatCompletion({ model, messages, sampling: { maxTokens: 4000, ignoreEos: true } });
  await assert.rejects(
    (async () => {
      for await (const reply of stream) if (reply.event === "delta") stream.cancel();
    })(),
    { code: grpc.status.CANCELLED },
  );
});

test("a deadline holds", async () => {
  const request = { model, messages, sampling: { maxTokens: 4000, ignoreEos: true } };
  const stream = chat.StreamChatCompletion(request, { deadline: Date.now() + 1500 });
  await assert.rejects(
    (async () => {
      for await (const _ of stream);
    })(),
    { code: grpc.status.DEADLINE_EXCEEDED },
  );
});

test("errors are statuses", async () => {
  await assert.rejects(call(models, "GetModel", { id: "no/such-model" }), { code: grpc.status.NOT_FOUND });
  const request = { model: "no/such-model", messages };
  await assert.rejects(call(chat, "CreateChatCompletion", request), { code: grpc.status.NOT_FOUND });
  const empty = { model, messages: [] };
  await assert.rejects(call(chat, "CreateChatCompletion", empty), { code: grpc.status.INVALID_ARGUMENT });
});
