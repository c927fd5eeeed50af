// The queue of a model, from the watch of the machine.

import type { Modality } from "../../generated/allm/models/v1/model_pb";
import { samples } from "./machine";

/** Requests of all callers that wait while the model computes others; 0 if that is unknown. */
export function queued(modality: Modality, model: string): number {
  const traffic = samples.value.at(-1)?.sample.traffic.find((each) => each.modality === modality);
  const own = traffic?.models.find(({ modelId }) => modelId === model);
  return own?.running ? Number(own.waiting) : 0;
}

/** The queue as a sentence; empty without one. */
export function queueSentence(modality: Modality, model: string): string {
  const count = queued(modality, model);
  return count === 0 ? "" : `${count} ${count === 1 ? "request waits" : "requests wait"} for this model`;
}
