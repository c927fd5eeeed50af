// Which model a chat begins with: one that probably answers well, and not too slowly.

import type { Model } from "../../generated/allm/models/v1/model_pb";

const SLOW = 4; // tokens per second, below the speed of reading
const BYTES_PER_PARAMETER = 1.2; // between 4-bit and 16-bit weights
const TEXT_SHARE = 0.5; // of the parameters of a model that sees, roughly: at an equal size, models for text alone answer better
const UNITS: Record<string, number> = { m: 1e6, b: 1e9 };

/** The model that probably answers best; undefined if there is none. */
export function bestOf(models: readonly Model[]): Model | undefined {
  return [...models].sort((one, other) => rank(other) - rank(one) || (one.id < other.id ? -1 : 1))[0];
}

/** Higher is better: models that are tuned to answer, then those measured to be fast enough, then the larger ones. */
function rank(model: Model): number {
  const measured = model.benchmarks.filter((each) => each.runtime === model.runtime && each.tokensPerSecond > 0);
  const slow = measured.length > 0 && measured.every((each) => each.tokensPerSecond < SLOW);
  const base = /\b(base|pretrained|pt)\b/i.test(model.id);
  return Math.log10(parameters(model)) - (base ? 200 : 0) - (slow ? 100 : 0);
}

/** The number of parameters for text, by the model's name, such as `8x7b` or `135m`, or else by its size. */
function parameters({ id, source, sizeBytes, capabilities }: Model): number {
  const share = capabilities.includes("vision") ? TEXT_SHARE : 1;
  const match = /(?:^|[^a-z0-9])(?:(\d+)x)?(\d+(?:\.\d+)?)([mb])(?![a-z0-9])/i.exec(`${id} ${source}`);
  if (!match) return Math.max(1, (share * Number(sizeBytes)) / BYTES_PER_PARAMETER);
  return share * Number(match[1] ?? 1) * Number(match[2]) * UNITS[match[3]!.toLowerCase()]!;
}
