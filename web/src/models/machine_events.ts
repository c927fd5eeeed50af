// Events of models and replicas, in words and as marks in plots.

import { MachineEventKind, type MachineEvent } from "../../generated/allm/models/v1/figures_pb";
import type { TimedEvent } from "./machine";

/** A vertical line in a plot. */
export interface Mark {
  at: number;
  name: string;
  tone: "good" | "warn" | "bad";
}

const TONES: Partial<Record<MachineEventKind, Mark["tone"]>> = {
  [MachineEventKind.LOADED]: "good",
  [MachineEventKind.UNLOADED]: "good",
  [MachineEventKind.EVICTED]: "warn",
  [MachineEventKind.LOAD_FAILED]: "bad",
  [MachineEventKind.WORKER_DIED]: "bad",
  [MachineEventKind.REPLICA_LOST]: "bad",
};
const SIGNS: Partial<Record<MachineEventKind, string>> = {
  [MachineEventKind.LOADED]: "+",
  [MachineEventKind.UNLOADED]: "−",
  [MachineEventKind.EVICTED]: "−",
  [MachineEventKind.LOAD_FAILED]: "✕",
  [MachineEventKind.WORKER_DIED]: "✕",
  [MachineEventKind.REPLICA_LOST]: "✕",
};
const EVICTED: Record<string, string> = {
  admission: "another model needed the memory",
  budget: "the loaded models exceeded their memory budget",
  idle: "it was not used for ALLM_IDLE_SECONDS",
  max_models: "ALLM_MAX_LOADED_MODELS limits the number of loaded models",
  peer: "a model of another service needed the memory",
  pressure: "the machine was low on memory",
};

export function marksOf(all: readonly TimedEvent[]): Mark[] {
  return all.map(({ at, event }) => ({
    at,
    name: `${SIGNS[event.kind] ?? ""} ${event.modelId || event.replica}`.trim(),
    tone: TONES[event.kind] ?? "good",
  }));
}

/** One event as a sentence without its full stop. */
export function sentenceOf(event: MachineEvent): string {
  const where = event.replica ? ` on ${event.replica}` : "";
  const name = event.modelId || event.replica;
  switch (event.kind) {
    case MachineEventKind.LOADED: return `${name} was loaded${where}`;
    case MachineEventKind.UNLOADED: return `${name} was unloaded${where}`;
    case MachineEventKind.EVICTED: return `${name} was evicted${where}: ${EVICTED[event.reason] ?? (event.reason || "other models needed the memory")}`;
    case MachineEventKind.LOAD_FAILED: return `${name} could not be loaded${where}: ${event.reason}`;
    case MachineEventKind.WORKER_DIED: return `The worker of ${name} died${where}; the next request starts a new one`;
    case MachineEventKind.REPLICA_LOST: return `${event.replica || "A replica"} stopped reporting`;
    default: return `${name}: unknown event`;
  }
}
