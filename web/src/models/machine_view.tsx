// What the machine is doing, over the last minutes.

import { useEffect, useMemo, useState } from "preact/hooks";
import { timings, percentile } from "../chat/timings";
import { bytes, seconds } from "../measures";
import { KEPT_SECONDS, marks, requestsNow, samples, shares } from "./history";
import { followMachine, machineFailure, residency } from "./machine";
import { Plot, type PlotData } from "./plot";

const LIMIT = 90; // percent: above it idle models are evicted, unless ALLM_MEMORY_THRESHOLD says otherwise
const TICK_MS = 1000;

export function MachineView() {
  const now = useNow();
  useEffect(() => void followMachine(), []);
  const memory = useMemo(() => memoryData(now), [now, samples.value]);
  const requests = useMemo(() => requestData(now), [now, samples.value]);
  const evictions = marks.value.filter((mark) => mark.what === "evicted").map((mark) => ({ at: mark.at, name: mark.id }));
  return (
    <section aria-labelledby="machine-title" class="machine">
      <h2 id="machine-title">Machine</h2>
      <Totals />
      <div class="plots">
        {residency.value
          ? <Plot title="Memory in use, with evictions" data={memory} unit="%" top={100} limit={LIMIT} marks={evictions} />
          : <p class="note">{machineFailure.value ? `The machine's memory is not shown: ${machineFailure.value.sentence}` : "Asking for the machine's memory…"}</p>}
        <Plot title="Requests that models work on or have waiting" data={requests} unit="" />
        {timings.value.length > 0 && <Plot title="Tokens a second, answers of this tab" data={rateData(now)} unit="" />}
      </div>
      <Latencies />
      <Events />
    </section>
  );
}

function Totals() {
  const told = residency.value;
  if (!told) return null;
  const places = [...(told.host ? [{ name: "Host", ...told.host }] : []), ...told.devices];
  return (
    <dl class="facts">
      {places.map((place) => (
        <div key={place.name}><dt>{place.name}</dt><dd>{bytes(place.usedBytes)} of {bytes(place.totalBytes)}</dd></div>
      ))}
    </dl>
  );
}

/** Percentiles of what this tab has seen: no other client's requests are known here. */
function Latencies() {
  const all = timings.value;
  if (!all.length) return <p class="hint">Once this tab has had answers, their speed is shown here.</p>;
  const firsts = all.map((each) => each.first);
  const rates = all.flatMap((each) => each.rate ?? []);
  const row = (share: number) => {
    const [first, rate] = [percentile(firsts, share), percentile(rates, 1 - share)];
    return <tr key={share}><th scope="row">{share * 100}% of answers</th><td>{first === null ? "–" : `within ${seconds(first)}`}</td><td>{rate === null ? "–" : `${rate.toFixed(1)} or more`}</td></tr>;
  };
  return (
    <table>
      <caption>How fast {all.length === 1 ? "the one answer" : `the ${all.length} answers`} of this tab came</caption>
      <thead><tr><td /><th scope="col">First token</th><th scope="col">Tokens a second</th></tr></thead>
      <tbody>{[0.5, 0.9, 0.99].map(row)}</tbody>
    </table>
  );
}

function Events() {
  const all = [...marks.value].reverse().slice(0, 8);
  if (!all.length) return null;
  return (
    <>
      <h3>Lately</h3>
      <ul class="events">
        {all.map((mark) => <li key={`${mark.at} ${mark.id}`}><time>{new Date(mark.at * 1000).toLocaleTimeString()}</time> {mark.id} {WORDS[mark.what]}</li>)}
      </ul>
    </>
  );
}

const WORDS = { loaded: "was loaded", unloaded: "was unloaded", evicted: "was evicted: others needed its memory, or nobody used it" };

function useNow(): number {
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), TICK_MS);
    return () => clearInterval(timer);
  }, []);
  return now;
}

function memoryData(now: number): PlotData {
  const current = shares();
  const places = Object.keys(current);
  const told = samples.value.filter((each) => Object.keys(each.places).length && each.at > now - KEPT_SECONDS);
  return {
    times: [...told.map((each) => each.at), now],
    series: places.map((name) => ({ name, values: [...told.map((each) => each.places[name] ?? null), current[name] ?? null] })),
  };
}

function requestData(now: number): PlotData {
  const told = samples.value.filter((each) => each.at > now - KEPT_SECONDS);
  return {
    times: [...told.map((each) => each.at), now],
    series: [{ name: "Requests", values: [...told.map((each) => each.requests), requestsNow()] }],
  };
}

function rateData(now: number): PlotData {
  const all = timings.value.filter((each) => each.at > now - KEPT_SECONDS);
  return { times: [...all.map((each) => each.at), now], series: [{ name: "Tokens/s", values: [...all.map((each) => each.rate), null], points: true }] };
}
