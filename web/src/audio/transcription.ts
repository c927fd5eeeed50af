// The transcription of a file or of the microphone, as it arrives.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { signal } from "@preact/signals";
import type { Segment } from "../../generated/allm/audio/v1/transcription_pb";
import { TranscriptionService, type TranscriptionConfigSchema } from "../../generated/allm/audio/v1/transcription_service_pb";
import { store, type Kept } from "../database";
import { asFailure, Failure, sizeRefused } from "../failure";
import { askWith, stream } from "../grpc_web";
import { joined, listen, packed, RATE, wav, type Microphone } from "./microphone";

export interface Word {
  text: string;
  start: number;
  end: number;
}

export interface Phrase {
  text: string;
  start: number;
  end: number;
  words: Word[];
}

export interface Transcription {
  name: string;
  model: string;
  /** The language that the user set; empty if the model detects it. */
  asked: string;
  state: "listening" | "running" | "done" | "failed";
  phrases: readonly Phrase[];
  /** Text that may still change. */
  partial: string;
  language: string;
  /** Seconds of sound; null while unknown. */
  duration: number | null;
  /** The sound; null while it is recorded. */
  sound: Blob | null;
  /** URL of the sound, for playback. */
  source: string;
  failure: Failure | null;
}

type Config = MessageInitShape<typeof TranscriptionConfigSchema>;

const CHUNK_BYTES = 512 * 1024;
const LOOK_SECONDS = 1.5; // of new sound before the next transcription of the microphone
const OPEN_SECONDS = 2; // a phrase that ends this shortly before now may still continue
const LONGEST_SECONDS = 28; // of sound per transcription: Whisper's window is 30

/** The transcription as the browser keeps it; one at a time. */
type KeptTranscription = Omit<Transcription, "source" | "partial" | "failure"> & Kept & { failure: Pick<Failure, "kind" | "message" | "code" | "param" | "requestId"> | null };

const ID = "transcription";
const records = store<KeptTranscription>("drafts");

export const current = signal<Transcription | null>(null);
let ending: AbortController | null = null;
let microphone: Microphone | null = null;
let wake = () => {}; // ends the wait for more sound

/** Transcribes a file as a whole: the model sees all of the sound, as with `POST /v1/audio/transcriptions`. */
export async function transcribe(file: Blob, name: string, model: string, language: string): Promise<void> {
  const ended = begin(name, model, language, file);
  try {
    const bytes = await read(file);
    const { transcript } = await askWith(TranscriptionService.method.transcribe, messages({ model, language, words: true }, bytes), ended.signal);
    if (ended !== ending || !transcript) return;
    put({ state: "done", phrases: transcript.segments.map(phraseOf), language: transcript.language, duration: transcript.duration });
  } catch (error) {
    const failure = asFailure(sizeRefused(error, file.size, "ALLM_MAX_AUDIO_BYTES", "Send a shorter recording, or one in a compressed format"), ended.signal.aborted);
    if (ended === ending) put({ state: "failed", failure });
  }
}

async function read(file: Blob): Promise<Uint8Array> {
  if (!file.size) throw new Failure("refused", "The file is empty");
  try {
    return new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Failure("refused", "The browser cannot read this file: it was moved or changed, or is too large");
  }
}

/** Transcribes the microphone until `stop`, and shows partial results. */
export async function dictate(model: string, language: string): Promise<void> {
  const ended = begin("Microphone", model, language, null);
  const pieces: Float32Array[] = [];
  let heard = 0;
  let news = () => {};
  try {
    const device = await listen((samples) => {
      pieces.push(samples);
      heard += samples.length / RATE;
      if (ended === ending) put({ duration: heard });
      news();
    });
    if (ended.signal.aborted) device.stop(); // while the browser asked for permission
    ended.signal.throwIfAborted();
    microphone = device;
    let settled = 0;
    let looked = 0;
    while (microphone || looked < heard) {
      while (microphone && heard - looked < LOOK_SECONDS) await new Promise<void>((resolve) => (news = wake = resolve));
      if (ended.signal.aborted || looked === heard) break;
      looked = heard;
      settled = await look({ model, language, words: true, raw: { sampleRate: RATE } }, joined(pieces), settled, !microphone, ended.signal);
    }
    if (ended !== ending) return;
    put({ state: "done", partial: "", ...recorded(pieces) });
  } catch (error) {
    if (ended !== ending) return;
    put({ state: "failed", failure: asFailure(error, ended.signal.aborted), partial: "", ...recorded(pieces) });
  }
  microphone?.stop();
  microphone = null;
}

function recorded(pieces: Float32Array[]): Partial<Transcription> {
  if (!pieces.length) return {};
  const sound = wav(joined(pieces));
  return { sound, source: urlOf(sound) };
}

function urlOf(sound: Blob | null): string {
  return sound?.size ? URL.createObjectURL(sound) : "";
}

/** Shows the last transcription again after a reload. */
async function restore(): Promise<void> {
  const last = await records.get(ID);
  if (!last || current.value) return;
  const { id: _id, at: _at, failure, ...kept } = last;
  const cut = kept.state === "running" || kept.state === "listening";
  const why = cut ? new Failure("refused", "The page was left before the transcription was complete") : null;
  current.value = {
    ...kept, state: cut ? "failed" : kept.state, partial: "", source: urlOf(kept.sound),
    failure: failure ? new Failure(failure.kind, failure.message, failure.code, failure.param, failure.requestId) : why,
  };
}
void restore().catch(() => undefined); // `unkept` has the reason

/** Sets the duration that the player reads from the file, in seconds, until the server has measured it. */
export function measured(seconds: number): void {
  if (current.value?.duration === null && Number.isFinite(seconds)) put({ duration: seconds });
}

/** Deletes the transcription and its sound. */
export async function clear(): Promise<void> {
  ending?.abort();
  ending = null;
  await records.remove(ID).catch(() => undefined); // `unkept` has the reason
  if (current.value?.source) URL.revokeObjectURL(current.value.source);
  current.value = null;
}

/** Stops the current transcription: finishes that of the microphone, abandons that of a file. */
export function stop(): void {
  if (microphone) {
    microphone.stop();
    microphone = null;
    wake();
  } else {
    ending?.abort();
  }
}

/** Transcribes all sound since `settled` (seconds); returns the new value of `settled`. */
async function look(config: Config, sound: Float32Array, settled: number, last: boolean, signal: AbortSignal): Promise<number> {
  const fresh = sound.subarray(Math.round(settled * RATE));
  const length = fresh.length / RATE;
  const found: Phrase[] = [];
  for await (const { event } of stream(TranscriptionService.method.streamTranscribe, messages(config, packed(fresh)), signal)) {
    if (event.case === "language") put({ language: event.value.language });
    if (event.case === "segment") found.push(phraseOf(event.value));
  }
  const closed = last ? found : found.filter((phrase) => phrase.end < length - OPEN_SECONDS || length > LONGEST_SECONDS);
  const open = found.slice(closed.length);
  const moved = closed.map((phrase) => shifted(phrase, settled));
  put({ phrases: [...(current.value?.phrases ?? []), ...moved], partial: open.map((phrase) => phrase.text).join("") });
  const end = closed.at(-1)?.end ?? (length > LONGEST_SECONDS ? length : 0);
  return settled + Math.min(end, length);
}

function shifted(phrase: Phrase, by: number): Phrase {
  return { ...phrase, start: phrase.start + by, end: phrase.end + by, words: phrase.words.map((word) => ({ ...word, start: word.start + by, end: word.end + by })) };
}

function* messages(config: Config, bytes: Uint8Array) {
  yield { payload: { case: "config" as const, value: config } };
  for (let at = 0; at < bytes.length; at += CHUNK_BYTES) {
    yield { payload: { case: "audio" as const, value: bytes.subarray(at, at + CHUNK_BYTES) } };
  }
}

function phraseOf(segment: Segment): Phrase {
  const words = segment.words.map(({ word, start, end }) => ({ text: word, start, end }));
  return { text: segment.text, start: segment.start, end: segment.end, words };
}

function begin(name: string, model: string, asked: string, sound: Blob | null): AbortController {
  ending?.abort();
  microphone?.stop();
  microphone = null;
  wake();
  if (current.value?.source) URL.revokeObjectURL(current.value.source);
  current.value = {
    name, model, asked, state: sound ? "running" : "listening", phrases: [], partial: "", language: "", duration: null,
    sound, source: urlOf(sound), failure: null,
  };
  keep(current.value);
  return (ending = new AbortController());
}

function put(part: Partial<Transcription>): void {
  if (!current.value) return;
  current.value = { ...current.value, ...part };
  if (part.state || part.phrases) keep(current.value);
}

function keep({ source: _source, partial: _partial, failure, ...kept }: Transcription): void {
  const why = failure && { kind: failure.kind, message: failure.message, code: failure.code, param: failure.param, requestId: failure.requestId };
  records.put({ ...kept, failure: why, id: ID, at: Date.now() }).catch(() => undefined); // `unkept` has the reason
}
