// The speed of an answer.

import type { Answer } from "./tree";

const LEAST_SECONDS = 0.01; // tokens that arrive together have no measured speed

/** Seconds until the first token; null before it. */
export function firstSeconds(answer: Answer): number | null {
  return answer.firstAt === null ? null : (answer.firstAt - answer.askedAt) / 1000;
}

/** Tokens per second after the first; null if unknown, as when all arrived together. */
export function rate(answer: Answer): number | null {
  if (answer.tokens === null || answer.firstAt === null || answer.lastAt === null || answer.tokens < 2) return null;
  const took = (answer.lastAt - answer.firstAt) / 1000;
  return took >= LEAST_SECONDS ? (answer.tokens - 1) / took : null;
}
