// An operator's actions on models.

import { signal } from "@preact/signals";
import { ModelService } from "../../generated/allm/models/v1/model_service_pb";
import { asFailure, type Failure } from "../failure";
import { ask } from "../grpc_web";

/** Running and failed actions, by model. */
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

async function act(id: string, what: string, call: () => Promise<unknown>): Promise<boolean> {
  note(id, { what, failure: null });
  try {
    await call();
    note(id, null);
    return true;
  } catch (error) {
    note(id, { what, failure: asFailure(error) });
    return false;
  }
}

function note(id: string, entry: { what: string; failure: Failure | null } | null): void {
  const next = new Map(doing.value);
  if (entry) next.set(id, entry);
  else next.delete(id);
  doing.value = next;
}
