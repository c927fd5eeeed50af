// What an answer without a token waits for: its model, its turn, or the computation of the prompt.

import { Modality, ModelState } from "../../generated/allm/models/v1/model_pb";
import { link, manages, models } from "../catalog";
import { queued } from "../models/queue";
import { isHere } from "./answering";
import type { Answer } from "./tree";

/** The reason as a sentence. */
export function waitingFor(answer: Answer): string {
  if (!isHere(answer)) return "Another tab receives this answer…";
  if (link.value.state === "away") return "Reconnecting to the server…";
  const model = models.value.find(({ id, aliases }) => id === answer.model || aliases.includes(answer.model));
  if (model && model.state !== ModelState.LOADED) {
    if (!manages.value) return `Waiting for ${model.id}; it may have to be loaded first…`; // its state is a minute old
    return `Loading ${model.id} into memory…`;
  }
  const waiting = queued(Modality.TEXT, model?.id ?? "");
  if (waiting) return `Waiting in the queue of ${answer.model}: ${waiting} ${waiting === 1 ? "request" : "requests"}…`;
  return "Waiting for the first token…";
}
