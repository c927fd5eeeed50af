// A gRPC client in Node that draws with a running allm and shows how far it is. Run by test_images_node.py.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import { kindOf, sizeOf } from "./picture.mjs";

const { ALLM_GRPC: address, ALLM_PROTOS: folder, ALLM_METRICS: metrics, ALLM_MODEL: model } = process.env;
const { ALLM_IMAGE: image, ALLM_MASK: mask, ALLM_SIDE } = process.env;
const side = Number(ALLM_SIDE); // pixels that the model draws

const PATIENCE_MS = 60_000;
const MANY = 150; // steps that take seconds

const definition = protoLoader.loadSync("allm/image/v1/image_service.proto", {
  includeDirs: [folder],
  enums: String,
  longs: Number,
  defaults: true,
  oneofs: true,
});
const { allm } = grpc.loadPackageDefinition(definition);
const service = new allm.image.v1.ImageService(address, grpc.credentials.createInsecure());
after(() => service.close());

const inTime = () => ({ deadline: Date.now() + PATIENCE_MS });
const prompt = "a green square on a white background";
const config = { model, steps: 4, seed: 7 };
const call = (method, request) =>
  new Promise((resolve, reject) =>
    service[method](request, inTime(), (error, reply) => (error ? reject(error) : resolve(reply))),
  );

/** What the image service counts of the model under a name; 0 before it has counted anything. */
async function counted(name) {
  const page = await (await fetch(metrics)).text();
  const line = page.split("\n").find((one) => one.startsWith(`${name}{model="${model}"} `));
  return Number(line?.split(" ").at(-1) ?? 0);
}

async function until(condition) {
  for (const deadline = Date.now() + PATIENCE_MS; !(await condition()); await setTimeout(50)) {
    assert.ok(Date.now() < deadline, condition.toString());
  }
}

const idle = async () =>
  (await counted("allm_requests_running")) + (await counted("allm_requests_waiting")) === 0;

test("shows progress at each step, partial images, and then the pictures", async () => {
  const steps = 20;
  const events = [];
  const request = { config: { ...config, steps, count: 2 }, prompt, partialImages: 1 };
  for await (const reply of service.StreamGenerateImage(request, inTime())) events.push(reply);
  const of = (kind) => events.filter(({ event }) => event === kind).map((reply) => reply[kind]);

  const kinds = events.map(({ event }) => event);
  assert.deepEqual([kinds[0], kinds.at(-1)], ["started", "finished"]);
  const [{ model: by, parameters }] = of("started");
  assert.equal(by, model);
  assert.deepEqual([parameters.width, parameters.height, parameters.steps, parameters.seed], [side, side, steps, 7]);

  // A reader that is slow misses some, but no step is told twice, and none after the pictures.
  const told = of("progress").map(({ step }) => step);
  assert.ok(told.length > 0);
  assert.deepEqual(told, [...new Set(told)].sort((a, b) => a - b));
  assert.ok(of("progress").every((each) => each.steps === steps && each.step <= steps));
  assert.ok(kinds.lastIndexOf("progress") < kinds.indexOf("image"), kinds.join());

  const [partials, images] = [of("partial"), of("image")];
  assert.deepEqual(partials.map(({ number }) => number), [0, 0]);
  assert.deepEqual(images.map(({ index }) => index).sort(), [0, 1]);
  for (const { data, width, height, seed, index, format } of [...images, ...partials.map((each) => each.image)]) {
    assert.equal(kindOf(data), "png");
    assert.deepEqual([width, height, ...sizeOf(data)], [side, side, side, side]);
    assert.deepEqual([seed, format], [7 + index, "IMAGE_FORMAT_PNG"]);
  }
  const [{ usage }] = of("finished");
  assert.equal(usage.steps, 2 * steps);
  assert.ok(usage.promptTokens > 0 && usage.seconds > 0);
});

test("progress comes while the model draws, and cancelling stops it", async () => {
  await until(idle);
  const before = await counted("allm_engine_steps_total");
  // Of this size four are drawn together: three batches of so many steps.
  const large = { ...config, steps: MANY, count: 10, width: 2 * side, height: 2 * side };
  const stream = service.StreamGenerateImage({ config: large, prompt }, inTime());
  await assert.rejects(
    (async () => {
      for await (const { event } of stream) if (event === "progress") stream.cancel();
    })(),
    { code: grpc.status.CANCELLED },
  );
  await until(idle);
  const computed = (await counted("allm_engine_steps_total")) - before;
  assert.ok(computed > 0 && computed < 2 * MANY, `${computed} steps`);
});

test("whole answers: drawn, drawn over, varied", async () => {
  const file = { image: readFileSync(image) };
  for (const [method, request] of [
    ["GenerateImage", { config, prompt }],
    ["EditImage", { config, prompt, ...file, mask: readFileSync(mask), strength: 0.5 }],
    ["CreateVariation", { config, ...file }],
  ]) {
    const { model: by, images, parameters, usage } = await call(method, request);
    assert.equal(by, model);
    assert.equal(images.length, 1);
    assert.deepEqual(sizeOf(images[0].data), [side, side]);
    assert.equal(parameters.seed, images[0].seed);
    assert.ok(usage.steps > 0);
  }
});

test("drawing over an image tells every step, too", async () => {
  const file = { image: readFileSync(image), config: { ...config, steps: 8 }, strength: 0.5, partialImages: 1 };
  for (const [method, request] of [
    ["StreamEditImage", { ...file, prompt, mask: readFileSync(mask) }],
    ["StreamCreateVariation", file],
  ]) {
    const events = [];
    for await (const reply of service[method](request, inTime())) events.push(reply);
    const told = events.filter(({ event }) => event === "progress").map(({ progress }) => progress);
    assert.ok(told.length > 0 && told.every(({ steps }) => steps === 4), method);
    const kinds = [...new Set(events.map(({ event }) => event))].sort();
    assert.deepEqual(kinds, ["finished", "image", "partial", "progress", "started"]);
    assert.equal(events.at(-1).event, "finished");
  }
});

test("errors are statuses", async () => {
  const { INVALID_ARGUMENT, NOT_FOUND } = grpc.status;
  const wrong = (changes) => call("GenerateImage", { config: { ...config, ...changes }, prompt });
  await assert.rejects(wrong({ model: "no/such-model" }), { code: NOT_FOUND });
  await assert.rejects(wrong({ count: 0 }), { code: INVALID_ARGUMENT, details: /count/ });
  await assert.rejects(wrong({ width: side }), { code: INVALID_ARGUMENT, details: /height/ });
  await assert.rejects(call("EditImage", { config, prompt }), { code: INVALID_ARGUMENT, details: /image/ });
});

test("a deadline holds", async () => {
  const stream = service.StreamGenerateImage(
    { config: { ...config, steps: MANY, count: 10 }, prompt },
    { deadline: Date.now() + 1000 },
  );
  await assert.rejects(
    (async () => {
      for await (const _ of stream);
    })(),
    { code: grpc.status.DEADLINE_EXCEEDED },
  );
  await until(idle);
});
