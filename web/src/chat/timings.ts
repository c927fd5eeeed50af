// How fast an answer came.

import type { Answer } from "./conversation";

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
