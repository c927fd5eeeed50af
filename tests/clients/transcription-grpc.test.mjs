// A gRPC client in Node that transcribes, also sound that is still being recorded, with a running allm. Run by
// test_audio_node.py.
import assert from "node:assert/strict";
import { createReadStream, readFileSync } from "node:fs";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { after, test } from "node:test";
import { setInterval, setTimeout } from "node:timers/promises";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import { heard } from "./heard.mjs";
import { checkSpans } from "./spans.mjs";

const { ALLM_GRPC: address, ALLM_PROTOS: folder, ALLM_METRICS: metrics, ALLM_MODEL: model } = process.env;
const { ALLM_SENTENCE: sentence, ALLM_SENTENCE_TEXT: said, ALLM_SENTENCE_SECONDS } = process.env;
const { ALLM_READING_SAMPLES: reading, ALLM_READING_TEXT: read } = process.env;

const CHUNK_MS = 100;
const RATE = 16_000;
const SAMPLE_BYTES = 2;
const CHUNK_BYTES = (RATE * SAMPLE_BYTES * CHUNK_MS) / 1000;
const PATIENCE_MS = 60_000;

const definition = protoLoader.loadSync("allm/audio/v1/transcription_service.proto", {
  includeDirs: [folder],
  enums: String,
  defaults: true,
  oneofs: true,
});
const { allm } = grpc.loadPackageDefinition(definition);
const service = new allm.audio.v1.TranscriptionService(address, grpc.credentials.createInsecure());
after(() => service.close());

const inTime = () => ({ deadline: Date.now() + PATIENCE_MS });
const live = { model, raw: { encoding: "SAMPLE_ENCODING_S16LE", sampleRate: RATE } };

/** Sends messages and then half-closes; gives the one answer. */
async function transcribe(messages) {
  let call;
  const answer = new Promise((resolve, reject) => {
    call = service.Transcribe(inTime(), (error, reply) => (error ? reject(error) : resolve(reply)));
  });
  // A call that is refused takes no more messages, which is none of the test's business.
  pipeline(Readable.from(messages), call).catch(() => {});
  return answer;
}

async function* file(config) {
  yield { config };
  for await (const audio of createReadStream(sentence, { highWaterMark: 8192 })) yield { audio };
}

test("transcribes a file that is sent in pieces", async () => {
  const { model: by, transcript } = await transcribe(file({ model, words: true, logprobs: true }));
  const seconds = Number(ALLM_SENTENCE_SECONDS);
  assert.equal(by, model);
  assert.ok(heard(said, transcript.text), transcript.text);
  assert.deepEqual([transcript.language, transcript.languageProbability], ["en", 1]);
  assert.ok(Math.abs(transcript.duration - seconds) < 0.01);
  assert.ok(0 < transcript.speechDuration && transcript.speechDuration <= transcript.duration);
  assert.ok(transcript.tokens > 0);
  checkSpans(transcript.segments, seconds);
  checkSpans(transcript.segments.flatMap(({ words }) => words), seconds);
  for (const { text, words, logprobs } of transcript.segments) {
    assert.equal(words.map(({ word }) => word).join("").trim(), text.trim());
    assert.equal(Buffer.concat(logprobs.map(({ token }) => token)).toString().trim(), text.trim());
  }
});

test("errors are statuses", async () => {
  const { INVALID_ARGUMENT, NOT_FOUND } = grpc.status;
  await assert.rejects(transcribe(file({ model: "no/such-model" })), { code: NOT_FOUND });
  await assert.rejects(transcribe([{ audio: Buffer.alloc(CHUNK_BYTES) }]), { code: INVALID_ARGUMENT });
  await assert.rejects(transcribe([{ config: { model } }]), { code: INVALID_ARGUMENT });
  await assert.rejects(transcribe(file({ model, temperature: 2 })), { code: INVALID_ARGUMENT, details: /temperature/ });
});

/**
 * A stream into which sound is spoken as a microphone would: so much every 100 ms, once the model listens. Whoever
 * speaks waits after a quarter for a first guess, and before the last word for a first sentence, as slow as they may come.
 */
class Speaking {
  sent = 0; // bytes of sound
  #call = service.StreamTranscribe(inTime());
  #samples = readFileSync(reading);
  #listens = Promise.withResolvers();
  #guesses = Promise.withResolvers();
  #hears = Promise.withResolvers();

  get bytes() {
    return this.#samples.length;
  }

  get seconds() {
    return this.bytes / SAMPLE_BYTES / RATE;
  }

  /** What the model tells, until the end. */
  async *events() {
    const sending = pipeline(Readable.from(this.#messages()), this.#call);
    sending.catch(() => {}); // the call says itself what is wrong
    for await (const reply of this.#call) {
      if (reply.event === "started") this.#listens.resolve();
      if (reply.event === "partial") this.#guesses.resolve();
      if (reply.event === "segment") this.#hears.resolve();
      yield reply;
    }
    await sending;
  }

  cancel() {
    this.#call.cancel();
  }

  async *#messages() {
    yield { config: live };
    await this.#listens.promise;
    for await (const _ of setInterval(CHUNK_MS)) {
      if (this.sent + CHUNK_BYTES >= this.bytes / 4) await this.#guesses.promise;
      if (this.sent + CHUNK_BYTES >= this.bytes) await this.#hears.promise;
      const audio = this.#samples.subarray(this.sent, this.sent + CHUNK_BYTES);
      if (audio.length === 0) return; // half-closes the stream
      this.sent += audio.length;
      yield { audio };
    }
  }
}

test("writes down speech while it is spoken", async () => {
  const speaking = new Speaking();
  const told = [];
  for await (const reply of speaking.events()) told.push({ ...reply, sent: speaking.sent });

  const of = (kind) => told.filter(({ event }) => event === kind);
  const [partials, segments] = [of("partial"), of("segment")];
  const kinds = told.map(({ event }) => event);
  assert.deepEqual([kinds[0], kinds.at(-1)], ["started", "finished"]);
  assert.deepEqual([of("started").length, of("language").length, of("finished").length], [1, 1, 1]);
  assert.equal(told[0].started.model, model);
  assert.equal(told[0].sent, 0);

  assert.ok(partials.length > 0, kinds.join());
  assert.ok(partials[0].sent < speaking.bytes / 2, `the first partial came after ${partials[0].sent} bytes`);
  for (const { partial, sent } of partials) {
    assert.ok(partial.text.trim());
    assert.ok(partial.start < partial.end && partial.end <= sent / SAMPLE_BYTES / RATE + 0.001);
  }

  // A sentence is final when the speaker pauses, not at the end of all.
  assert.ok(segments.length > 1);
  assert.ok(segments[0].sent < speaking.bytes, "the first segment came at the end");
  assert.deepEqual(segments.map(({ segment }) => segment.index), segments.map((_, at) => at));
  checkSpans(segments.map(({ segment }) => segment), speaking.seconds);
  assert.ok(heard(read, segments.map(({ segment }) => segment.text).join("")));
  assert.ok(kinds.indexOf("language") < kinds.indexOf("segment"));
  assert.equal(of("language")[0].language.language, "en");

  const { finished, sent } = told.at(-1);
  assert.equal(sent, speaking.bytes); // it is the half-close that ends it
  assert.equal(finished.language, "en");
  assert.ok(Math.abs(finished.duration - speaking.seconds) < 0.01);
  assert.ok(0 < finished.speechDuration && finished.speechDuration <= finished.duration);
  assert.ok(finished.tokens > 0);
});

/** What the audio service counts under a name with these labels; 0 before it has counted any. */
async function counted(name, labels = {}) {
  const page = await (await fetch(metrics)).text();
  const shown = Object.entries({ ...labels, model }).sort().map(([key, value]) => `${key}="${value}"`);
  const line = page.split("\n").find((one) => one.startsWith(`${name}{${shown.join()}} `));
  return Number(line?.split(" ").at(-1) ?? 0);
}

const open = async () => (await counted("allm_requests_running")) + (await counted("allm_requests_waiting"));
const cancelled = () =>
  counted("allm_errors_total", { code: "CANCELLED", rpc: "TranscriptionServicer.StreamTranscribe" });

async function until(condition) {
  for (const deadline = Date.now() + PATIENCE_MS; !(await condition()); await setTimeout(50)) {
    assert.ok(Date.now() < deadline, condition.toString());
  }
}

test("a stream that is cancelled leaves the model", async () => {
  await until(async () => (await open()) === 0);
  const before = await cancelled();
  const speaking = new Speaking();
  await assert.rejects(
    (async () => {
      for await (const { event } of speaking.events()) {
        if (event !== "partial") continue;
        await until(async () => (await open()) === 1);
        speaking.cancel();
      }
    })(),
    { code: grpc.status.CANCELLED },
  );
  assert.ok(speaking.sent < speaking.bytes);
  await until(async () => (await open()) === 0 && (await cancelled()) === before + 1);
});
