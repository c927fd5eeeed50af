// What a request waits for before its first output: the server, its model, or its turn.

import { ModelState, type Modality } from "../../generated/allm/models/v1/model_pb";
import { link, manages, models } from "../catalog";
import { samples } from "./machine";

/** The reason as a sentence; empty while the model computes. `started`: the model is known to be in memory. */
export function waitingFor(modality: Modality, name: string, started = false): string {
  if (link.value.state === "away") return "Reconnecting to the server…";
  const model = models.value.find(({ id, aliases }) => id === name || aliases.includes(name));
  if (model && model.state !== ModelState.LOADED && !started) {
    if (!manages.value) return `Waiting for ${model.id}; it may have to be loaded first…`; // its state is a minute old
    return `Loading ${model.id} into memory…`;
  }
  const waiting = queued(modality, model?.id ?? name);
  return waiting ? `Waiting in the queue of ${name}: ${waiting} ${waiting === 1 ? "request" : "requests"}…` : "";
}

/** Requests of all callers that wait while the model computes others; 0 if that is unknown. */
function queued(modality: Modality, model: string): number {
  const traffic = samples.value.at(-1)?.sample.traffic.find((each) => each.modality === modality);
  const own = traffic?.models.find(({ modelId }) => modelId === model);
  return own?.running ? Number(own.waiting) : 0;
}
