// The states of models in words.

import { ModelState } from "../../generated/allm/models/v1/model_pb";

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
