// The images of this tab and their generation.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { signal } from "@preact/signals";
import { ImageFormat, type Image, type ImageConfigSchema, type ImageParameters } from "../../generated/allm/image/v1/image_pb";
import { ImageService, type StreamEditImageResponse, type StreamGenerateImageResponse } from "../../generated/allm/image/v1/image_service_pb";
import { asFailure, Failure } from "../failure";
import { stream } from "../grpc_web";

export interface ImageForm {
  model: string;
  prompt: string;
  negative: string;
  width: string;
  height: string;
  steps: string;
  guidance: string;
  seed: string;
  count: string;
  strength: string;
}

/** A finished image. */
export interface Picture {
  id: number;
  source: string;
  content: Blob;
  prompt: string;
  model: string;
  width: number;
  height: number;
  seed: bigint;
  steps: number;
}

/** The running generation. */
export interface Generation {
  prompt: string;
  step: number;
  steps: number;
  /** The preview of each image, by number. */
  previews: ReadonlyMap<number, { source: string; number: number }>;
  failure: Failure | null;
}

type Config = MessageInitShape<typeof ImageConfigSchema>;
type GenerationReply = StreamGenerateImageResponse | StreamEditImageResponse;

const PREVIEWS = 3;
const MIB = 1024 * 1024;
const LARGE = 4 * MIB; // smaller requests are unlikely to exceed the limit

export const form = signal<ImageForm>({ model: "", prompt: "", negative: "", width: "", height: "", steps: "", guidance: "", seed: "", count: "1", strength: "" });
export const gallery = signal<readonly Picture[]>([]);
export const generation = signal<Generation | null>(null);
let ending: AbortController | null = null;
let last = 0;

export function change(part: Partial<ImageForm>): void {
  form.value = { ...form.value, ...part };
}

/** Generates images from the form and shows the progress. */
export async function generate(model: string): Promise<void> {
  const { prompt } = form.value;
  const request = { config: config(model), prompt, partialImages: PREVIEWS };
  await perform(prompt, model, (signal) => stream(ImageService.method.streamGenerateImage, [request], signal));
}

/** Edits an image, everywhere or where a mask is transparent, and shows the progress. */
export async function edit(model: string, image: Blob, mask: Blob | null): Promise<void> {
  const { prompt, strength } = form.value;
  const request = { config: config(model), prompt, strength: number(strength), partialImages: PREVIEWS };
  await perform(prompt, model, async function* (signal) {
    const [bytes, maskBytes] = await Promise.all([content(image), mask ? content(mask) : new Uint8Array()]);
    try {
      yield* stream(ImageService.method.streamEditImage, [{ ...request, image: bytes, mask: maskBytes }], signal);
    } catch (error) {
      throw unread(error, bytes.length + maskBytes.length);
    }
  });
}

/** Stops the running generation. */
export function stop(): void {
  ending?.abort();
}

export function forget(picture: Picture): void {
  URL.revokeObjectURL(picture.source);
  gallery.value = gallery.value.filter((each) => each !== picture);
}

/** Shows the events of a stream until it ends or is stopped. */
async function perform(prompt: string, model: string, replies: (signal: AbortSignal) => AsyncIterable<GenerationReply>): Promise<void> {
  const ended = (ending = new AbortController());
  endPreviews();
  generation.value = { prompt, step: 0, steps: 0, previews: new Map(), failure: null };
  try {
    let parameters: ImageParameters | undefined;
    for await (const { event } of replies(ended.signal)) {
      if (event.case === "started") {
        parameters = event.value.parameters;
        put({ steps: parameters?.steps ?? 0 });
      }
      if (event.case === "progress") put({ step: event.value.step, steps: event.value.steps });
      if (event.case === "partial" && event.value.image) preview(event.value.image, event.value.number);
      if (event.case === "image") keep(event.value, prompt, model, parameters);
    }
    endPreviews();
    generation.value = null;
  } catch (error) {
    put({ failure: asFailure(error, ended.signal.aborted) });
  }
}

/** Explains a closed connection: the gateway closes it on a request that is too large, without an error for browsers. */
function unread(error: unknown, bytes: number): unknown {
  if (!(error instanceof Failure) || error.kind !== "away" || bytes < LARGE) return error;
  const size = `${Math.round(bytes / MIB)} MiB`;
  return new Failure("refused", `The server did not accept a request of ${size}: it is unavailable, or the request exceeds its limit (ALLM_MAX_BODY_BYTES). Try a smaller image`);
}

function config(model: string): Config {
  const { negative, width, height, steps, guidance, seed, count } = form.value;
  return {
    model,
    width: number(width),
    height: number(height),
    steps: number(steps),
    guidance: number(guidance),
    seed: seed.trim() ? BigInt(seed) : undefined,
    count: number(count),
    negativePrompt: negative,
    format: ImageFormat.PNG,
  };
}

function number(text: string): number | undefined {
  return text.trim() ? Number(text) : undefined;
}

async function content(file: Blob): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await file.arrayBuffer());
}

function preview(image: Image, at: number): void {
  const before = generation.value?.previews.get(image.index);
  const previews = new Map(generation.value?.previews);
  previews.set(image.index, { source: URL.createObjectURL(png(image)), number: at });
  put({ previews });
  if (before) URL.revokeObjectURL(before.source);
}

function keep(image: Image, prompt: string, model: string, parameters: ImageParameters | undefined): void {
  const file = png(image);
  last += 1;
  const picture = {
    id: last, source: URL.createObjectURL(file), content: file, prompt, model, width: image.width, height: image.height,
    seed: image.seed, steps: parameters?.steps ?? 0,
  };
  gallery.value = [picture, ...gallery.value];
}

function png(image: Image): Blob {
  return new Blob([image.data as Uint8Array<ArrayBuffer>], { type: "image/png" });
}

function endPreviews(): void {
  for (const { source } of generation.value?.previews.values() ?? []) URL.revokeObjectURL(source);
}

function put(part: Partial<Generation>): void {
  if (generation.value) generation.value = { ...generation.value, ...part };
}
