// The official `openai` package for Node, unmodified, transcribing with a running allm. Run by test_audio_node.py.
import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { test } from "node:test";
import OpenAI, { toFile } from "openai";
import { heard } from "./heard.mjs";
import { checkSpans } from "./spans.mjs";

const { ALLM_BASE_URL: baseURL, ALLM_MODEL: model, ALLM_TEXT_MODEL: textModel } = process.env;
const { ALLM_SENTENCE: sentence, ALLM_SENTENCE_TEXT: said, ALLM_SENTENCE_SECONDS } = process.env;
const { ALLM_READING: reading, ALLM_READING_TEXT: read } = process.env;
const seconds = Number(ALLM_SENTENCE_SECONDS);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const create = (asked, path = sentence) =>
  client.audio.transcriptions.create({ model, file: createReadStream(path), ...asked });

/** A time of subtitles in seconds. */
const time = (hours, minutes, rest) => 3600 * hours + 60 * minutes + Number(rest.replace(",", "."));

/** Checks subtitles, as blocks of lines: a line of two times and then text. */
function checkCues(cues) {
  const spans = cues.map(([times]) => {
    const found = /^(\d\d):(\d\d):(\d\d[.,]\d{3}) --> (\d\d):(\d\d):(\d\d[.,]\d{3})$/.exec(times);
    assert.ok(found, times);
    return { start: time(...found.slice(1, 4)), end: time(...found.slice(4)) };
  });
  checkSpans(spans, seconds);
  assert.ok(heard(said, cues.flatMap(([, ...text]) => text).join(" ")));
}

const blocks = (text) => text.trimEnd().split("\n\n").map((block) => block.split("\n"));

test("json", async () => {
  const { data, response } = await create({}).withResponse();
  assert.ok(heard(said, data.text), data.text);
  assert.deepEqual(data.usage, { type: "duration", seconds: Math.ceil(seconds) });
  assert.equal(data.logprobs, undefined);
  assert.ok(response.headers.get("x-request-id"));
});

test("text", async () => {
  const text = await create({ response_format: "text" });
  assert.equal(typeof text, "string");
  assert.ok(heard(said, text), text);
  assert.match(text, /\S\n$/);
});

test("srt", async () => {
  const cues = blocks(await create({ response_format: "srt" }));
  assert.deepEqual(cues.map(([number]) => number), cues.map((_, at) => `${at + 1}`));
  assert.ok(cues.every(([, times]) => times.includes(",")));
  checkCues(cues.map(([, ...rest]) => rest));
});

test("vtt", async () => {
  const [head, ...cues] = blocks(await create({ response_format: "vtt" }));
  assert.deepEqual(head, ["WEBVTT"]);
  assert.ok(cues.every(([times]) => times.includes(".")));
  checkCues(cues);
});

test("verbose_json has the segments, and the words if asked", async () => {
  const found = await create({ response_format: "verbose_json", timestamp_granularities: ["word", "segment"] });
  assert.deepEqual([found.task, found.language], ["transcribe", "english"]);
  assert.ok(Math.abs(found.duration - seconds) < 0.01);
  assert.ok(heard(said, found.text), found.text);
  checkSpans(found.segments, seconds);
  assert.equal(found.segments.map(({ text }) => text).join("").trim(), found.text);
  found.segments.forEach((segment, at) => {
    assert.equal(segment.id, at);
    assert.ok(segment.tokens.length > 0 && segment.tokens.every(Number.isInteger));
    assert.ok(segment.avg_logprob < 0 && segment.no_speech_prob <= 1 && segment.compression_ratio > 0);
    assert.equal(typeof segment.temperature, "number");
    assert.equal(typeof segment.seek, "number");
  });
  checkSpans(found.words, seconds);
  assert.equal(found.words.map(({ word }) => word).join(" "), found.text);
});

test("streams each segment, with logprobs", async () => {
  const events = [];
  for await (const event of await create({ stream: true, include: ["logprobs"] }, reading)) events.push(event);
  const deltas = events.slice(0, -1);
  const done = events.at(-1);
  assert.ok(deltas.length > 1, `${deltas.length} deltas`);
  assert.ok(deltas.every(({ type }) => type === "transcript.text.delta"));
  assert.equal(done.type, "transcript.text.done");
  assert.equal(deltas.map(({ delta }) => delta).join(""), done.text);
  assert.ok(heard(read, done.text), done.text);
  assert.deepEqual(deltas.flatMap(({ logprobs }) => logprobs), done.logprobs);
  for (const { delta, logprobs } of deltas) {
    assert.ok(logprobs.every(({ logprob }) => logprob <= 0));
    assert.equal(Buffer.concat(logprobs.map(({ bytes }) => Buffer.from(bytes))).toString().trim(), delta.trim());
  }
  assert.equal(done.usage.output_tokens, done.logprobs.length);
  assert.equal(done.usage.total_tokens, done.usage.input_tokens + done.usage.output_tokens);
});

test("logprobs of a whole answer", async () => {
  const { text, logprobs } = await create({ include: ["logprobs"] });
  assert.equal(logprobs.map(({ token }) => token).join("").trim(), text);
});

const wrong = { status: 400, code: null };
const unsupported = { status: 400, code: "unsupported" };
const unknown = { status: 404, code: "model_not_found" };
// What is refused, what is asked, the parameter that is named, what the message says, and how the error is told.
for (const [what, asked, param, message, { status, code }] of [
  ["an unknown format", { response_format: "html" }, "response_format", /json, text, srt/, wrong],
  ["telling speakers apart", { response_format: "diarized_json" }, "response_format", /speakers/, unsupported],
  ["a temperature", { temperature: 2 }, "temperature", /from 0 to 1/, wrong],
  ["words in json", { timestamp_granularities: ["word"] }, "timestamp_granularities", /verbose_json/, wrong],
  ["streamed subtitles", { response_format: "srt", stream: true }, "stream", /json or text/, wrong],
  ["an unknown model", { model: "no/such-model" }, "model", /no\/such-model/, unknown],
  ["a model of text", { model: textModel }, "model", new RegExp(`${textModel}.* not for audio`), unsupported],
]) {
  test(`refuses ${what}`, async () => {
    await assert.rejects(create(asked), (error) => {
      assert.ok(error instanceof OpenAI.APIError);
      assert.deepEqual([error.status, error.type], [status, "invalid_request_error"]);
      assert.deepEqual([error.param, error.code], [param, code]);
      assert.match(error.message, message);
      return true;
    });
  });
}

test("refuses what is no sound", async () => {
  const file = await toFile(Buffer.from("This is a text.\n".repeat(100)), "text.mp3");
  await assert.rejects(create({ file }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "file");
    return true;
  });
});

test("a model that knows English only refuses to translate", async () => {
  const asked = client.audio.translations.create({ model, file: createReadStream(sentence) });
  await assert.rejects(asked, (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.param, error.code], ["model", "unsupported"]);
    assert.ok(error.message.includes(model) && error.message.includes("translation"), error.message);
    return true;
  });
});
