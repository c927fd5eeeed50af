// The generation of images.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { signal } from "@preact/signals";
import { ImageFormat, type Image, type ImageConfigSchema, type ImageParameters } from "../../generated/allm/image/v1/image_pb";
import { ImageService, type StreamEditImageResponse, type StreamGenerateImageResponse } from "../../generated/allm/image/v1/image_service_pb";
import { asFailure, sizeRefused, type Failure } from "../failure";
import { stream } from "../grpc_web";
import { remembered } from "../remembered";
import { add } from "./gallery";

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

/** The running generation. */
export interface Generation {
  prompt: string;
  model: string;
  /** True once the model is loaded and has the request. */
  started: boolean;
  step: number;
  steps: number;
  /** The preview of each image, by number. */
  previews: ReadonlyMap<number, { source: string; number: number }>;
  failure: Failure | null;
}

type Config = MessageInitShape<typeof ImageConfigSchema>;
type GenerationReply = StreamGenerateImageResponse | StreamEditImageResponse;

const PREVIEWS = 3;

export const form = remembered<ImageForm>("image", { model: "", prompt: "", negative: "", width: "", height: "", steps: "", guidance: "", seed: "", count: "1", strength: "" });
export const generation = signal<Generation | null>(null);
let ending: AbortController | null = null;

export function change(part: Partial<ImageForm>): void {
  form.value = { ...form.value, ...part };
}

/** Generates images from the form and shows the progress. */
export async function generate(model: string): Promise<void> {
  const { prompt } = form.value;
  const request = { config: config(model), prompt, partialImages: PREVIEWS };
  await perform(model, (signal) => stream(ImageService.method.streamGenerateImage, [request], signal));
}

/** Edits an image, everywhere or where a mask is transparent, and shows the progress. */
export async function edit(model: string, image: Blob, mask: Blob | null): Promise<void> {
  const { prompt, strength } = form.value;
  const request = { config: config(model), prompt, strength: number(strength), partialImages: PREVIEWS };
  await perform(model, async function* (signal) {
    const [bytes, maskBytes] = await Promise.all([content(image), mask ? content(mask) : new Uint8Array()]);
    try {
      yield* stream(ImageService.method.streamEditImage, [{ ...request, image: bytes, mask: maskBytes }], signal);
    } catch (error) {
      throw sizeRefused(error, bytes.length + maskBytes.length, "ALLM_MAX_BODY_BYTES", "Try a smaller image");
    }
  });
}

/** Stops the running generation. */
export function stop(): void {
  ending?.abort();
}

/** Shows the events of a stream until it ends or is stopped. */
async function perform(model: string, replies: (signal: AbortSignal) => AsyncIterable<GenerationReply>): Promise<void> {
  const ended = (ending = new AbortController());
  const { prompt, negative } = form.value;
  endPreviews();
  generation.value = { prompt, model, started: false, step: 0, steps: 0, previews: new Map(), failure: null };
  try {
    let parameters: ImageParameters | undefined;
    for await (const { event } of replies(ended.signal)) {
      if (event.case === "started") {
        parameters = event.value.parameters;
        put({ started: true, steps: parameters?.steps ?? 0 });
      }
      if (event.case === "progress") put({ step: event.value.step, steps: event.value.steps });
      if (event.case === "partial" && event.value.image) preview(event.value.image, event.value.number);
      if (event.case === "image") {
        const { width, height, seed } = event.value;
        add({ content: png(event.value), prompt, negative, model, width, height, seed, steps: parameters?.steps ?? 0 });
      }
    }
    endPreviews();
    generation.value = null;
  } catch (error) {
    put({ failure: asFailure(error, ended.signal.aborted) });
  }
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

function png(image: Image): Blob {
  return new Blob([image.data as Uint8Array<ArrayBuffer>], { type: "image/png" });
}

function endPreviews(): void {
  for (const { source } of generation.value?.previews.values() ?? []) URL.revokeObjectURL(source);
}

function put(part: Partial<Generation>): void {
  if (generation.value) generation.value = { ...generation.value, ...part };
}
