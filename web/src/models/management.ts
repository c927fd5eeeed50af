// An operator's actions on models.

import { signal } from "@preact/signals";
import { ModelService } from "../../generated/allm/models/v1/model_service_pb";
import { models } from "../catalog";
import { asFailure, Failure } from "../failure";
import { ask } from "../grpc_web";

/** The formats of models, with their names. */
export const FORMATS: [string, string][] = [
  ["gguf", "Text (GGUF)"], ["safetensors", "Text (safetensors)"], ["whisper", "Speech (Whisper)"], ["diffusers", "Images (diffusers)"],
];

/** Running and failed actions, by model; for models that are not registered yet, by source. */
export const doing = signal<ReadonlyMap<string, { what: string; failure: Failure | null }>>(new Map());

export function load(id: string): Promise<boolean> {
  return act(id, "Loading", () => ask(ModelService.method.loadModel, { id }));
}

export function unload(id: string): Promise<boolean> {
  return act(id, "Unloading", () => ask(ModelService.method.unloadModel, { id }));
}

export function remove(id: string): Promise<boolean> {
  return act(id, "Deleting", () => ask(ModelService.method.deleteModel, { id }));
}

/** The failure of a registration or a search, without the advice for requests to models, which does not fit. */
export function withoutAdvice(error: unknown): Failure {
  const failure = asFailure(error);
  return new Failure(failure.kind, failure.message, "", failure.param, failure.requestId);
}

/** Registers a model of the hub; its services then fetch it. Takes another id if the proposed one is taken. */
export function add(source: string, format: string, id: string): Promise<boolean> {
  return act(source, "Adding", () => ask(ModelService.method.registerModel, { id: freeId(id), source, format }), withoutAdvice);
}

function freeId(id: string): string {
  const taken = new Set(models.peek().flatMap((model) => [model.id, ...model.aliases]));
  let free = id;
  for (let number = 2; taken.has(free); number += 1) free = `${id}-${number}`;
  return free;
}

/** Converts a source to the catalog's URL form; users may enter a bare hub name or path. */
export function sourceOf(text: string): string {
  const source = text.trim();
  if (source.includes("://")) return source;
  if (source.startsWith("/")) return `file://${source}`;
  return `hf://${source}`;
}

/** Suggests an id for a source. */
export function idOf(text: string): string {
  const name = text.trim().replace(/[#@].*$/, "").replace(/\/+$/, "").split("/").pop() ?? "";
  return name.replace(/\.(gguf|safetensors|pt)$/i, "").replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "").toLowerCase();
}

async function act(id: string, what: string, call: () => Promise<unknown>, failed: (error: unknown) => Failure = asFailure): Promise<boolean> {
  note(id, { what, failure: null });
  try {
    await call();
    note(id, null);
    return true;
  } catch (error) {
    note(id, { what, failure: failed(error) });
    return false;
  }
}

function note(id: string, entry: { what: string; failure: Failure | null } | null): void {
  const next = new Map(doing.value);
  if (entry) next.set(id, entry);
  else next.delete(id);
  doing.value = next;
}
