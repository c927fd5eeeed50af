// What the last minutes were like: memory, requests, and which models left memory.

import { effect, signal } from "@preact/signals";
import type { DesiredModel } from "../../generated/allm/models/v1/manifest_pb";
import { models, onChange } from "../catalog";
import { residency } from "./machine";

/** One look: Unix seconds; shares of memory in use, 0 to 100, by place; requests that use models. */
export interface Sample {
  at: number;
  places: Record<string, number>;
  requests: number;
}

/** A model has come into memory or left it. */
export interface Mark {
  at: number;
  id: string;
  what: "loaded" | "unloaded" | "evicted";
}

export const KEPT_SECONDS = 900;
const MOST_MARKS = 100;

export const samples = signal<readonly Sample[]>([]);
export const marks = signal<readonly Mark[]>([]);
// Models that somebody has asked to unload, and that have not gone yet.
const asked = new Set<string>();

/** Shares of memory in use, by place, as last told. */
export function shares(): Record<string, number> {
  const told = residency.value;
  const found: Record<string, number> = {};
  if (told?.host && told.host.totalBytes) found["Host"] = (Number(told.host.usedBytes) / Number(told.host.totalBytes)) * 100;
  for (const device of told?.devices ?? []) {
    if (device.totalBytes) found[device.name] = (Number(device.usedBytes) / Number(device.totalBytes)) * 100;
  }
  return found;
}

export function requestsNow(): number {
  return models.value.flatMap((model) => model.replicas).reduce((sum, replica) => sum + (replica.memory?.requests ?? 0), 0);
}

effect(() => {
  const sample = { at: Date.now() / 1000, places: shares(), requests: requestsNow() };
  const kept = samples.peek().filter((each) => each.at > sample.at - KEPT_SECONDS);
  samples.value = [...kept, sample];
});

function inMemory(desired: DesiredModel | null): boolean {
  return (desired?.model?.replicas ?? []).some((replica) => replica.memory && !replica.memory.loading);
}

onChange((before, after) => {
  if (before && after?.model && after.unloads > before.unloads) asked.add(after.model.id);
});

onChange((before, after) => {
  const id = after?.model?.id ?? before?.model?.id ?? "";
  const [was, is] = [inMemory(before), inMemory(after)];
  if (was === is || !before) return;
  const wanted = !after || asked.delete(id) || after.model?.generation !== before.model?.generation;
  const what = is ? "loaded" : wanted ? "unloaded" : "evicted";
  marks.value = [...marks.peek(), { at: Date.now() / 1000, id, what } as Mark].slice(-MOST_MARKS);
});
