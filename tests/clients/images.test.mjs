// The official `openai` package for Node, unmodified, drawing with a running allm. Run by test_images_node.py.
import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { test } from "node:test";
import OpenAI, { toFile } from "openai";
import { kindOf, sizeOf } from "./picture.mjs";

const { ALLM_BASE_URL: baseURL, ALLM_MODEL: model, ALLM_TEXT_MODEL: textModel } = process.env;
const { ALLM_IMAGE: image, ALLM_MASK: mask, ALLM_SMALL_MASK: smallMask, ALLM_SIDE } = process.env;
const side = Number(ALLM_SIDE); // pixels that the model draws
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const prompt = "a red circle on a blue background";
const generate = (asked) => client.images.generate({ model, prompt, steps: 2, seed: 7, ...asked });
const edit = (asked) =>
  client.images.edit({ model, prompt, image: createReadStream(image), steps: 4, seed: 7, ...asked });

const bytes = ({ b64_json }) => Buffer.from(b64_json, "base64");

function checkPicture(data, kind = "png") {
  assert.equal(kindOf(data), kind);
  if (kind === "png") assert.deepEqual(sizeOf(data), [side, side]);
}

test("draws what is said, again and again the same for a seed", async () => {
  const { data, response } = await generate({ n: 2 }).withResponse();
  assert.equal(data.data.length, 2);
  assert.deepEqual(data.data.map(({ seed }) => seed), [7, 8]);
  data.data.forEach((each) => checkPicture(bytes(each)));
  assert.notDeepEqual(bytes(data.data[0]), bytes(data.data[1]));
  assert.deepEqual([data.size, data.output_format, data.background], [`${side}x${side}`, "png", "opaque"]);
  assert.equal(data.usage.output_tokens, 2 * (side / 16) ** 2);
  assert.equal(data.usage.total_tokens, data.usage.input_tokens + data.usage.output_tokens);
  assert.ok(response.headers.get("x-request-id"));
});

test("a url leads to the picture that base64 would have been", async () => {
  const [{ b64_json: none, url }] = (await generate({ response_format: "url" })).data;
  assert.equal(none, undefined);
  const reply = await fetch(url);
  assert.deepEqual([reply.status, reply.headers.get("content-type")], [200, "image/png"]);
  const fetched = Buffer.from(await reply.arrayBuffer());
  checkPicture(fetched);
  const [whole] = (await generate({ response_format: "b64_json" })).data;
  assert.equal(whole.url, undefined);
  assert.deepEqual(fetched, bytes(whole));
});

for (const kind of ["jpeg", "webp"]) {
  test(`writes ${kind} of several qualities`, async () => {
    const [good, poor] = await Promise.all(
      [100, 0].map(async (output_compression) => generate({ output_format: kind, output_compression })),
    );
    for (const { data, output_format } of [good, poor]) {
      assert.equal(output_format, kind);
      checkPicture(bytes(data[0]), kind);
    }
    assert.ok(bytes(poor.data[0]).length < bytes(good.data[0]).length);
  });
}

/** The previews and the end of a stream. */
async function streamed(stream, kind) {
  const events = [];
  for await (const event of stream) events.push(event);
  const end = events.pop();
  assert.ok(events.every(({ type }) => type === `${kind}.partial_image`), events.map(({ type }) => type).join());
  assert.deepEqual(events.map(({ partial_image_index: index }) => index), events.map((_, at) => at));
  assert.equal(end.type, `${kind}.completed`);
  for (const event of [...events, end]) checkPicture(bytes(event));
  assert.equal(end.usage.total_tokens, end.usage.input_tokens + end.usage.output_tokens);
  return { partials: events.map(bytes), end: bytes(end) };
}

test("shows what a picture looks like so far", async () => {
  const stream = await generate({ stream: true, partial_images: 3, steps: 8 });
  const { partials, end } = await streamed(stream, "image_generation");
  assert.equal(new Set([...partials, end].map((each) => each.toString("base64"))).size, 4);
  const [whole] = (await generate({ steps: 8 })).data;
  assert.deepEqual(end, bytes(whole));
});

test("draws over a picture under a mask", async () => {
  const masked = async (asked) => bytes((await edit({ mask: createReadStream(mask), ...asked })).data[0]);
  const [under, again] = [await masked({}), await masked({})];
  checkPicture(under);
  assert.deepEqual(under, again);
  assert.notDeepEqual(under, bytes((await edit({})).data[0]));
});

test("streams an edit", async () => {
  const stream = await edit({ stream: true, partial_images: 1, mask: createReadStream(mask) });
  const { partials } = await streamed(stream, "image_edit");
  assert.equal(partials.length, 1);
});

test("varies a picture", async () => {
  const { data } = await client.images.createVariation({ model, image: createReadStream(image), n: 2, steps: 4 });
  assert.equal(data.length, 2);
  data.forEach((each) => checkPicture(bytes(each)));
  assert.notDeepEqual(bytes(data[0]), bytes(data[1]));
});

const wrong = { status: 400, code: null };
const unsupported = { status: 400, code: "unsupported" };
const unknown = { status: 404, code: "model_not_found" };
// What is refused, what is asked, the parameter that is named, what the message says, and how the error is told.
for (const [what, asked, param, message, { status, code }] of [
  ["an unknown model", { model: "no/such-model" }, "model", /no\/such-model/, unknown],
  ["a model of text", { model: textModel }, "model", new RegExp(textModel), unsupported],
  ["no pictures", { n: 0 }, "n", /1 to 10/, wrong],
  ["a size that cannot be", { size: "65x64" }, "size", /multiples? of/, wrong],
  ["a transparent background", { background: "transparent" }, "background", /alpha/, unsupported],
  ["a stream of addresses", { stream: true, response_format: "url" }, "stream", /b64_json/, unsupported],
  ["more partial images than three", { stream: true, partial_images: 4 }, "partial_images", /0 to 3/, wrong],
]) {
  test(`refuses ${what}`, async () => {
    await assert.rejects(generate(asked), (error) => {
      assert.ok(error instanceof OpenAI.APIError);
      assert.deepEqual([error.status, error.type], [status, "invalid_request_error"]);
      assert.deepEqual([error.param, error.code], [param, code]);
      assert.match(error.message, message);
      return true;
    });
  });
}

for (const [what, param, asked] of [
  ["a mask of another size", "mask", () => ({ mask: createReadStream(smallMask) })],
  ["what is no picture", "image", async () => ({ image: await toFile(Buffer.from("words"), "words.png") })],
]) {
  test(`refuses ${what}`, async () => {
    const files = await asked();
    await assert.rejects(edit(files), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, param);
      return true;
    });
  });
}
