// The load of the machine over the last minutes.

import { signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { Modality } from "../../generated/allm/models/v1/model_pb";
import type { Host, ModelTraffic, Traffic } from "../../generated/allm/models/v1/machine_service_pb";
import { link, manages } from "../catalog";
import { amount, bytes, seconds, timeOfDay } from "../measures";
import { Empty } from "../notes";
import { FigureView } from "./figure_view";
import { sentenceOf } from "./machine_events";
import { GENERATED_LINES, latencyLines, latencyName, memoryLines, NOTHING, percentileWords, PROMPT_LINES, rateWords, REQUEST_LINES, type Latency } from "./lines";
import { machineEvents, samples, machineFailure, wantPast } from "./machine";
import { held, shownSample } from "./moment";

const MOST_HOSTS = 8;
const MOST_EVENTS = 10;
const LATENCIES: Latency[] = ["firstOutput", "outputToken", "request"];
const percent = (value: number) => `${Math.round(value)}%`;
const axisSeconds = (value: number) => (value === 0 || value >= 1 ? `${amount(value)} s` : seconds(value));
const latencyOf = signal<Modality>(Modality.UNSPECIFIED);

export function MachineView() {
  useEffect(wantPast, []);
  const failure = machineFailure.value;
  const known = samples.value.length > 0;
  const up = link.value.state === "up";
  if (up && !manages.value) {
    return (
      <div class="page">
        <h1>Machine</h1>
        <Empty title="This key cannot see the machine"><p>Memory and activity are visible with a key that has the scope <code>admin</code>.</p></Empty>
      </div>
    );
  }
  return (
    <div class="page machine">
      <h1>Machine</h1>
      {failure && up && <p class="note">{known ? "This data is out of date" : "Machine data is not available"}: {failure.sentence}</p>}
      {!known && !failure && <p class="hint" role="status">{link.value.state === "away" ? "No machine data was received yet." : "Loading machine data…"}</p>}
      {known && (
        <>
          <MomentSlider />
          <Plots />
          <TrafficTable />
          <RecentEvents />
        </>
      )}
    </div>
  );
}

/** Moves all plots and figures back in time, by mouse, finger or keys. */
function MomentSlider() {
  const all = samples.value;
  const at = held.value;
  const place = at === null ? all.length - 1 : Math.max(0, all.findLastIndex((each) => each.at <= at));
  const shown = shownSample.value?.at ?? 0;
  const words = shownSample.value === all.at(-1) ? `now, ${timeOfDay(shown)}` : timeOfDay(shown);
  const move = (to: number) => (held.value = to >= all.length - 1 ? null : all[to]!.at);
  return (
    <div class="row moment">
      <label class="inline">Time
        <input type="range" min={0} max={Math.max(1, all.length - 1)} value={place} aria-valuetext={words} onInput={(event) => move(Number(event.currentTarget.value))} />
      </label>
      <output>{words}</output>
      {at !== null && <button type="button" class="quiet" onClick={() => (held.value = null)}>Back to now</button>}
    </div>
  );
}

function TrafficTable() {
  const traffic = shownSample.value?.sample.traffic ?? [];
  if (!traffic.length) return <p class="hint">No service has reported data yet.</p>;
  const rows = traffic.flatMap((each) => [
    { key: String(each.modality), name: modalityName(each.modality), model: false, load: each },
    ...each.models.map((load) => ({ key: `${each.modality} ${load.modelId}`, name: load.modelId, model: true, load })),
  ]);
  // A service's only model has the service's latencies.
  const latencies = traffic.flatMap((each) => [
    ...latenciesOf(each, each.modality, modalityName(each.modality)),
    ...(each.models.length > 1 ? each.models.flatMap((load) => latenciesOf(load, each.modality, load.modelId)) : []),
  ]);
  return (
    <div class="tables">
      <div class="scroll" tabIndex={0} role="region" aria-label="Activity">
        <table>
          <caption>Activity</caption>
          <thead><tr><td /><th scope="col">Running</th><th scope="col">Waiting</th><th scope="col">Requests/s</th><th scope="col">Throughput</th></tr></thead>
          <tbody>
            {rows.map(({ key, name, model, load }) => (
              <tr key={key}>
                <th scope="row" class={model ? "part" : ""}>{name}</th>
                <td>{amount(Number(load.running))}</td>
                <td>{amount(Number(load.waiting))}</td>
                <td>{load.requestsPerSecond === undefined ? NOTHING : amount(load.requestsPerSecond)}</td>
                <td>{rateWords(load)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {latencies.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Latency over the last minute">
          <table class="latencies">
            <caption>Latency over the last minute</caption>
            <thead><tr><td /><th scope="col">P50</th><th scope="col">P95</th><th scope="col">P99</th></tr></thead>
            <tbody>
              {latencies.map(({ modality, name, which, percentiles }) => (
                <tr key={`${modality} ${name} ${which}`}>
                  <th scope="row">{name}: {latencyName(modality, which).toLowerCase()}</th>
                  {percentileWords(percentiles).map((words, at) => <td key={at}>{words}</td>)}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}

/** The measured latencies of a service or of a model. */
function latenciesOf(load: Traffic | ModelTraffic, modality: Modality, name: string) {
  return LATENCIES.flatMap((which) => (load[which] ? [{ modality, name, which, percentiles: load[which] }] : []));
}

function Plots() {
  const hosts = samples.value.at(-1)!.sample.hosts;
  const measured = measuredModalities();
  const modality = measured.includes(latencyOf.value) ? latencyOf.value : (measured[0] ?? Modality.TEXT);
  const firsts = useMemo(() => latencyLines(modality, "firstOutput"), [modality]);
  const wholes = useMemo(() => latencyLines(modality, "request"), [modality]);
  return (
    <>
      <div class="plots">
        {hosts.slice(0, MOST_HOSTS).map((host) => <MemoryPlot key={host.id} host={host} />)}
        <FigureView title="Requests" lines={REQUEST_LINES} axis={amount} whole empty="No service has reported data yet." />
        <FigureView title="Generated tokens per second" lines={GENERATED_LINES} axis={amount} empty="No tokens were generated in the last 15 minutes." />
        <FigureView title="Prompt tokens per second" lines={PROMPT_LINES} axis={amount} empty="No prompts were processed in the last 15 minutes." />
        <FigureView title={latencyName(modality, "firstOutput")} lines={firsts} axis={axisSeconds} empty="No request was completed in the last 15 minutes." />
        <FigureView title={latencyName(modality, "request")} lines={wholes} axis={axisSeconds} empty="No request was completed in the last 15 minutes." />
      </div>
      {measured.length > 1 && (
        <label class="inline">Latency of
          <select value={String(modality)} onChange={(event) => (latencyOf.value = Number(event.currentTarget.value))}>
            {measured.map((each) => <option key={each} value={String(each)}>{modalityName(each)}</option>)}
          </select>
        </label>
      )}
      {hosts.length > MOST_HOSTS && <OtherHosts hosts={hosts.slice(MOST_HOSTS)} />}
    </>
  );
}

function MemoryPlot({ host }: { host: Host }) {
  const shape = [host.id, ...host.devices.map((each) => each.id)].join("\n");
  const lines = useMemo(() => memoryLines(host), [shape]);
  const share = host.thresholdShare * 100;
  const limit = share > 0 ? { limit: { value: share, name: percent(share) } } : {};
  return <FigureView title={`Memory of ${host.name || "the host"}`} lines={lines} axis={percent} top={100} named empty="The host has not reported its memory." {...limit} />;
}

/** Figures of the hosts beyond MOST_HOSTS, which have no plots. */
function OtherHosts({ hosts }: { hosts: Host[] }) {
  return (
    <details class="panel">
      <summary>Memory of {hosts.length} more {hosts.length === 1 ? "host" : "hosts"}</summary>
      <dl class="values">
        {hosts.flatMap((host) => [host, ...host.devices].map((place) => (
          <div key={`${host.id} ${place.id}`}><dt>{place === host ? host.name : `${host.name} ${place.name}`}</dt><dd>{bytes(place.usedBytes)} of {bytes(place.totalBytes)}</dd></div>
        )))}
      </dl>
    </details>
  );
}

/** The modalities with measured requests in the last minutes. */
function measuredModalities(): Modality[] {
  const found = new Set(samples.value.flatMap(({ sample }) => sample.traffic.filter((each) => each.request ?? each.firstOutput).map((each) => each.modality)));
  return [...found].sort();
}

function RecentEvents() {
  const all = [...machineEvents.value].reverse().slice(0, MOST_EVENTS);
  if (!all.length) return null;
  return (
    <>
      <h2>Recent events</h2>
      <ul class="events">
        {all.map(({ at, event }, place) => <li key={place}><time>{timeOfDay(at)}</time> {sentenceOf(event)}</li>)}
      </ul>
    </>
  );
}

function modalityName(modality: Modality): string {
  const name = Modality[modality] ?? "";
  return name.charAt(0) + name.slice(1).toLowerCase();
}
