// The plotted lines of the machine: for each its name, its values, and the text of a value.

import type { Host, MachineSample, ModelTraffic, Percentiles, Traffic } from "../../generated/allm/models/v1/machine_service_pb";
import { Modality } from "../../generated/allm/models/v1/model_pb";
import { amount, bytes, seconds } from "../measures";

export interface Line {
  name: string;
  /** Null without a measurement. */
  value: (sample: MachineSample) => number | null;
  said: (sample: MachineSample) => string;
}

/** A traffic figure counted per second. */
type Rate = "generatedTokensPerSecond" | "promptTokensPerSecond";
/** A traffic figure with percentiles. */
export type Latency = "firstOutput" | "outputToken" | "request";

export const NOTHING = "–";
const PERCENTILES: [keyof Percentiles & `p${string}`, string][] = [["p50Seconds", "P50"], ["p95Seconds", "P95"], ["p99Seconds", "P99"]];
const FIRSTS: Partial<Record<Modality, string>> = { [Modality.TEXT]: "token", [Modality.AUDIO]: "segment", [Modality.IMAGE]: "image" };

/** The memory of a host and of its devices, in percent. */
export function memoryLines(host: Host): Line[] {
  const devices = host.devices.map((device) => placeLine(device.name, (sample) => findHost(sample, host.id)?.devices.find((each) => each.id === device.id)));
  return [placeLine("Host", (sample) => findHost(sample, host.id)), ...devices];
}

/** Running and waiting requests. */
export const REQUEST_LINES: Line[] = [countLine("Running", "running"), countLine("Waiting", "waiting")];

export const GENERATED_LINES: Line[] = [rateLine("Generated", "generatedTokensPerSecond")];
export const PROMPT_LINES: Line[] = [rateLine("Prompt", "promptTokensPerSecond")];

/** Percentiles of one modality. */
export function latencyLines(modality: Modality, which: Latency): Line[] {
  return PERCENTILES.map(([percentile, name]) => {
    const value = (sample: MachineSample) => sample.traffic.find((each) => each.modality === modality)?.[which]?.[percentile] ?? null;
    return { name, value, said: (sample) => worded(value(sample), seconds) };
  });
}

/** The name of a latency, such as `Time to first token`. */
export function latencyName(modality: Modality, which: Latency): string {
  if (which === "request") return "Request duration";
  return which === "outputToken" ? "Time between tokens" : `Time to first ${FIRSTS[modality] ?? "output"}`;
}

/** Formats percentiles. */
export function percentileWords(measured: Percentiles | undefined): string[] {
  return PERCENTILES.map(([percentile]) => worded(measured?.[percentile] ?? null, seconds));
}

/** Formats the throughput of a service or of a model. */
export function rateWords(traffic: Traffic | ModelTraffic): string {
  const parts = [
    traffic.audioSecondsPerSecond === undefined ? "" : `${amount(traffic.audioSecondsPerSecond)} s of audio/s`,
    traffic.imagesPerSecond === undefined ? "" : `${amount(traffic.imagesPerSecond)} images/s`,
    traffic.generatedTokensPerSecond === undefined ? "" : `${amount(traffic.generatedTokensPerSecond)} tokens/s`,
    traffic.promptTokensPerSecond === undefined ? "" : `${amount(traffic.promptTokensPerSecond)} prompt tokens/s`,
  ];
  return parts.filter(Boolean).join(", ") || NOTHING;
}

function findHost(sample: MachineSample, id: string): Host | undefined {
  return sample.hosts.find((each) => each.id === id);
}

function placeLine(name: string, find: (sample: MachineSample) => { usedBytes: bigint; totalBytes: bigint } | undefined): Line {
  const value = (sample: MachineSample) => {
    const place = find(sample);
    return place?.totalBytes ? (Number(place.usedBytes) / Number(place.totalBytes)) * 100 : null;
  };
  const said = (sample: MachineSample) => {
    const place = find(sample);
    return place ? `${bytes(place.usedBytes)} of ${bytes(place.totalBytes)}` : NOTHING;
  };
  return { name, value, said };
}

function countLine(name: string, which: "running" | "waiting"): Line {
  const value = (sample: MachineSample) => (sample.traffic.length ? sample.traffic.reduce((sum, each) => sum + Number(each[which]), 0) : null);
  return { name, value, said: (sample) => worded(value(sample), amount) };
}

function rateLine(name: string, which: Rate): Line {
  const value = (sample: MachineSample) => {
    const measured = sample.traffic.flatMap((each) => each[which] ?? []);
    return measured.length ? measured.reduce((sum, each) => sum + each, 0) : null;
  };
  return { name, value, said: (sample) => worded(value(sample), (rate) => `${amount(rate)} tokens/s`) };
}

function worded(value: number | null, words: (value: number) => string): string {
  return value === null ? NOTHING : words(value);
}
