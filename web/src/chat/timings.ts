// How fast the answers of this tab came.

import { signal } from "@preact/signals";
import type { Answer } from "./conversation";

/** One answer: seconds to its first token, tokens a second after that, and when it was whole (Unix seconds). */
export interface Timing {
  model: string;
  at: number;
  first: number;
  rate: number | null;
}

const KEPT = 500;

export const timings = signal<readonly Timing[]>([]);

/** Seconds until the first token; null while there is none. */
export function firstSeconds(answer: Answer): number | null {
  return answer.firstAt === null ? null : (answer.firstAt - answer.askedAt) / 1000;
}

/** Tokens a second once they came; null where it cannot be told. */
export function rate(answer: Answer): number | null {
  if (answer.tokens === null || answer.firstAt === null || answer.lastAt === null || answer.tokens < 2) return null;
  const took = (answer.lastAt - answer.firstAt) / 1000;
  return took > 0 ? (answer.tokens - 1) / took : null;
}

export function noteAnswer(answer: Answer): void {
  const first = firstSeconds(answer);
  if (first === null) return;
  const timing = { model: answer.model, at: Date.now() / 1000, first, rate: rate(answer) };
  timings.value = [...timings.value, timing].slice(-KEPT);
}

/** The value below which a share of all lies, 0 to 1; null of none. */
export function percentile(values: number[], share: number): number | null {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? null;
}
