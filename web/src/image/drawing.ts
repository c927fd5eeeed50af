// Pictures of this tab, and how they come to be.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { signal } from "@preact/signals";
import { ImageFormat, type Image, type ImageConfigSchema, type ImageParameters } from "../../generated/allm/image/v1/image_pb";
import { ImageService } from "../../generated/allm/image/v1/image_service_pb";
import { asFailure, type Failure } from "../failure";
import { ask, stream } from "../grpc_web";

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

/** A picture that is done. */
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

/** What is being drawn. */
export interface Drawing {
  prompt: string;
  step: number;
  steps: number;
  /** Of each picture, what it looks like so far. */
  previews: ReadonlyMap<number, { source: string; number: number }>;
  failure: Failure | null;
}

type Config = MessageInitShape<typeof ImageConfigSchema>;

const PREVIEWS = 3;

export const form = signal<ImageForm>({ model: "", prompt: "", negative: "", width: "", height: "", steps: "", guidance: "", seed: "", count: "1", strength: "" });
export const gallery = signal<readonly Picture[]>([]);
export const drawing = signal<Drawing | null>(null);
let ending: AbortController | null = null;
let last = 0;

export function change(part: Partial<ImageForm>): void {
  form.value = { ...form.value, ...part };
}

/** Draws what the form says, and shows meanwhile how far it is. */
export async function draw(model: string): Promise<void> {
  const { prompt } = form.value;
  const request = { config: config(model), prompt, partialImages: PREVIEWS };
  let told: ImageParameters | undefined;
  await perform(prompt, async (signal) => {
    for await (const { event } of stream(ImageService.method.streamGenerateImage, [request], signal)) {
      if (event.case === "started") {
        told = event.value.parameters;
        put({ steps: told?.steps ?? 0 });
      }
      if (event.case === "progress") put({ step: event.value.step, steps: event.value.steps });
      if (event.case === "partial" && event.value.image) preview(event.value.image, event.value.number);
      if (event.case === "image") keep(event.value, prompt, model, told);
    }
  });
}

/** Draws over a picture: everywhere, or where a mask is transparent. */
export async function edit(model: string, image: Blob, mask: Blob | null): Promise<void> {
  const { prompt, strength } = form.value;
  const [bytes, maskBytes] = await Promise.all([content(image), mask ? content(mask) : new Uint8Array()]);
  const request = { config: config(model), prompt, image: bytes, mask: maskBytes, strength: number(strength) };
  await perform(prompt, async (signal) => {
    const answer = await ask(ImageService.method.editImage, request, signal);
    for (const each of answer.images) keep(each, prompt, model, answer.parameters);
  });
}

/** Ends what is being drawn. */
export function stop(): void {
  ending?.abort();
}

export function forget(picture: Picture): void {
  URL.revokeObjectURL(picture.source);
  gallery.value = gallery.value.filter((each) => each !== picture);
}

async function perform(prompt: string, work: (signal: AbortSignal) => Promise<void>): Promise<void> {
  const ended = (ending = new AbortController());
  endPreviews();
  drawing.value = { prompt, step: 0, steps: 0, previews: new Map(), failure: null };
  try {
    await work(ended.signal);
    endPreviews();
    drawing.value = null;
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
  const before = drawing.value?.previews.get(image.index);
  const previews = new Map(drawing.value?.previews);
  previews.set(image.index, { source: URL.createObjectURL(png(image)), number: at });
  put({ previews });
  if (before) URL.revokeObjectURL(before.source);
}

function keep(image: Image, prompt: string, model: string, told: ImageParameters | undefined): void {
  const file = png(image);
  last += 1;
  const picture = {
    id: last, source: URL.createObjectURL(file), content: file, prompt, model, width: image.width, height: image.height,
    seed: image.seed, steps: told?.steps ?? 0,
  };
  gallery.value = [picture, ...gallery.value];
}

function png(image: Image): Blob {
  return new Blob([image.data as Uint8Array<ArrayBuffer>], { type: "image/png" });
}

function endPreviews(): void {
  for (const { source } of drawing.value?.previews.values() ?? []) URL.revokeObjectURL(source);
}

function put(part: Partial<Drawing>): void {
  if (drawing.value) drawing.value = { ...drawing.value, ...part };
}
