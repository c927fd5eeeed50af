// The states of models in words.

import { ModelState, type Model } from "../../generated/allm/models/v1/model_pb";

const NAMES: Record<ModelState, string> = {
  [ModelState.UNSPECIFIED]: "unknown",
  [ModelState.READY]: "ready",
  [ModelState.LOADED]: "loaded",
  [ModelState.FAILED]: "failed",
  [ModelState.UNSUPPORTED]: "unsupported",
  [ModelState.PENDING]: "pending",
  [ModelState.DOWNLOADING]: "downloading",
  [ModelState.VERIFYING]: "verifying",
};

export function stateName(state: ModelState): string {
  return NAMES[state];
}

/** The fetched share of a model's files, 0 to 1, on the replica that has most; null if none fetches. */
export function downloaded({ replicas }: Model): number | null {
  const shares = replicas.filter((each) => each.totalBytes > 0n).map((each) => Number(each.doneBytes) / Number(each.totalBytes));
  return shares.length ? Math.max(...shares) : null;
}
