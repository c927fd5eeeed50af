// A plot with its figures, now or at the selected moment.

import { useMemo } from "preact/hooks";
import { machineEvents, samples, type TimedSample } from "./machine";
import { NOTHING, type Line } from "./lines";
import { marksOf } from "./machine_events";
import { shownSample } from "./moment";
import { COLOURS, Plot, type PlotData } from "./plot";

const GAP_SECONDS = 5; // a longer time without samples, such as a restart of the catalog, is a gap in the plot

interface Props {
  title: string;
  lines: readonly Line[];
  /** The text if nothing was measured in the whole period. */
  empty: string;
  axis: (value: number) => string;
  top?: number;
  whole?: boolean;
  limit?: { value: number; name: string };
  named?: boolean;
}

export function FigureView({ title, lines, empty, ...rest }: Props) {
  const all = samples.value;
  const data = useMemo(() => plotData(all, lines), [all, lines]);
  const marks = useMemo(() => marksOf(machineEvents.value), [machineEvents.value]);
  const last = all.at(-1)?.sample;
  const anything = data.values.some((values) => values.some((value) => value !== null));
  const now = lines.map((line) => `${line.name}: ${last ? line.said(last) : NOTHING}`).join(", ");
  return (
    <figure class="plot">
      <figcaption>{title}</figcaption>
      {anything ? <Plot label={`Plot: ${title}. Latest values: ${now}`} data={data} marks={marks} {...rest} /> : <p class="hint nothing">{empty}</p>}
      {anything && <Figures lines={lines} limit={rest.limit} />}
    </figure>
  );
}

/** The values of the lines at the selected moment; also the legend. */
function Figures({ lines, limit }: { lines: readonly Line[]; limit: Props["limit"] | undefined }) {
  const sample = shownSample.value?.sample;
  return (
    <dl class="values">
      {lines.map((line, at) => (
        <div key={line.name}>
          <dt><span class={`swatch line-${(at % COLOURS) + 1}${at >= COLOURS ? " dashed" : ""}`} aria-hidden="true" />{line.name}</dt>
          <dd>{sample ? line.said(sample) : NOTHING}</dd>
        </div>
      ))}
      {limit && <div><dt><span class="swatch limit dashed" aria-hidden="true" />Threshold</dt><dd>{limit.name}</dd></div>}
    </dl>
  );
}

/** All values of the lines; missing samples become gaps. */
function plotData(all: readonly TimedSample[], lines: readonly Line[]): PlotData {
  const times: number[] = [];
  const values: (number | null)[][] = lines.map(() => []);
  all.forEach(({ at, sample }, index) => {
    const before = all[index - 1]?.at ?? at;
    if (at - before > GAP_SECONDS) {
      times.push(before + GAP_SECONDS);
      for (const each of values) each.push(null);
    }
    times.push(at);
    lines.forEach((line, place) => values[place]!.push(line.value(sample)));
  });
  return { times, values };
}
