// The transcription of a file or of the microphone, as it arrives.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { signal } from "@preact/signals";
import type { Segment } from "../../generated/allm/audio/v1/transcription_pb";
import { TranscriptionService, type TranscriptionConfigSchema } from "../../generated/allm/audio/v1/transcription_service_pb";
import { asFailure, type Failure } from "../failure";
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
  state: "listening" | "running" | "done" | "failed";
  phrases: readonly Phrase[];
  /** Text that may still change. */
  partial: string;
  language: string;
  /** Seconds of sound; null while unknown. */
  duration: number | null;
  /** URL of the sound, for playback. */
  source: string;
  failure: Failure | null;
}

type Config = MessageInitShape<typeof TranscriptionConfigSchema>;

const CHUNK_BYTES = 512 * 1024;
const LOOK_SECONDS = 1.5; // of new sound before the next transcription of the microphone
const OPEN_SECONDS = 2; // a phrase that ends this shortly before now may still continue
const LONGEST_SECONDS = 28; // of sound per transcription: Whisper's window is 30

export const current = signal<Transcription | null>(null);
let ending: AbortController | null = null;
let microphone: Microphone | null = null;
let wake = () => {}; // ends the wait for more sound

/** Transcribes a file. */
export async function transcribe(file: File, model: string, language: string): Promise<void> {
  const ended = begin(file.name, URL.createObjectURL(file), "running");
  const config: Config = { model, language, words: true };
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    await follow(config, bytes, ended.signal, (event) => ended === ending && put(event));
    if (ended === ending) put({ state: "done", partial: "" });
  } catch (error) {
    if (ended !== ending) return;
    const failure = asFailure(error, ended.signal.aborted);
    // The server can read some files only as a whole, because their index is at the end.
    if (failure.kind === "refused" && !current.value?.phrases.length && (await whole(config, bytes, ended))) return;
    put({ state: "failed", failure, partial: "" });
  }
}

/** Transcribes the microphone until `stop`, and shows partial results. */
export async function dictate(model: string, language: string): Promise<void> {
  const ended = begin("Microphone", "", "listening");
  const pieces: Float32Array[] = [];
  let heard = 0;
  let news = () => {};
  try {
    microphone = await listen((samples) => {
      pieces.push(samples);
      heard += samples.length / RATE;
      if (ended === ending) put({ duration: heard });
      news();
    });
    let settled = 0;
    let looked = 0;
    while (microphone || looked < heard) {
      while (microphone && heard - looked < LOOK_SECONDS) await new Promise<void>((resolve) => (news = wake = resolve));
      if (ended.signal.aborted || looked === heard) break;
      looked = heard;
      settled = await look({ model, language, words: true, raw: { sampleRate: RATE } }, joined(pieces), settled, !microphone, ended.signal);
    }
    if (ended !== ending) return;
    put({ state: "done", partial: "", source: URL.createObjectURL(wav(joined(pieces))) });
  } catch (error) {
    if (ended !== ending) return;
    put({ state: "failed", failure: asFailure(error, ended.signal.aborted), partial: "" });
  }
  microphone?.stop();
  microphone = null;
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
  await follow(config, packed(fresh), signal, ({ phrases, language }) => {
    if (phrases) found.push(...phrases.slice(-1));
    if (language) put({ language });
  }, []);
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

async function follow(
  config: Config, bytes: Uint8Array, signal: AbortSignal, report: (news: Partial<Transcription>) => void, known: Phrase[] = [],
): Promise<void> {
  const phrases = known;
  for await (const { event } of stream(TranscriptionService.method.streamTranscribe, messages(config, bytes), signal)) {
    if (event.case === "language") report({ language: event.value.language });
    if (event.case === "partial") report({ partial: event.value.text });
    if (event.case === "segment") {
      phrases.push(phraseOf(event.value));
      report({ phrases: [...phrases], partial: "" });
    }
    if (event.case === "finished") report({ duration: event.value.duration });
  }
}

async function whole(config: Config, bytes: Uint8Array, ended: AbortController): Promise<boolean> {
  try {
    const { transcript } = await askWith(TranscriptionService.method.transcribe, messages(config, bytes), ended.signal);
    if (ended === ending) {
      put({ state: "done", phrases: transcript?.segments.map(phraseOf) ?? [], language: transcript?.language ?? "", duration: transcript?.duration ?? null });
    }
    return true;
  } catch {
    return false;
  }
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

function begin(name: string, source: string, state: Transcription["state"]): AbortController {
  ending?.abort();
  microphone?.stop();
  microphone = null;
  wake();
  if (current.value?.source) URL.revokeObjectURL(current.value.source);
  current.value = { name, state, phrases: [], partial: "", language: "", duration: null, source, failure: null };
  return (ending = new AbortController());
}

function put(part: Partial<Transcription>): void {
  if (current.value) current.value = { ...current.value, ...part };
}
