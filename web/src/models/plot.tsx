// A plot over the last minutes.

import { effect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { theme } from "../theme";

export interface Series {
  name: string;
  values: (number | null)[];
  /** Points alone, where a line between them would say nothing. */
  points?: boolean;
}

export interface PlotData {
  times: number[];
  series: Series[];
}

/** A vertical line with a name. */
export interface TimeMark {
  at: number;
  name: string;
}

interface Props {
  title: string;
  data: PlotData;
  unit: string;
  /** The highest value of the axis; else as high as the values. */
  top?: number;
  /** A horizontal line, such as that of 90%. */
  limit?: number;
  marks?: readonly TimeMark[];
}

const HEIGHT = 170;
const SHORTEST_SECONDS = 60;
const COLOURS = ["--plot-1", "--plot-2", "--plot-3", "--plot-4"];

export function Plot({ title, data, unit, top, limit, marks = [] }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const drawn = useRef({ limit, marks });
  drawn.current = { limit, marks };
  const shape = data.series.map((each) => each.name).join("\n");
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      plot.current = create(place.current!, data, unit, top, drawn);
    };
    const endTheme = effect(() => {
      void theme.value;
      make();
    });
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", make);
    const sizes = new ResizeObserver(() => plot.current?.setSize({ width: place.current!.clientWidth, height: HEIGHT }));
    sizes.observe(place.current!);
    return () => {
      endTheme();
      system.removeEventListener("change", make);
      sizes.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData([data.times, ...data.series.map((each) => each.values)] as uPlot.AlignedData), [data]);
  const last = data.series.map((each) => `${each.name}: ${spoken(each.values, unit)}`).join(", ");
  return (
    <figure class="plot">
      <figcaption>{title}</figcaption>
      <div ref={place} role="img" aria-label={`${title}. ${last}`} />
    </figure>
  );
}

function timeOfDay(at: number): string {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

function spoken(values: (number | null)[], unit: string): string {
  const value = values.findLast((each) => each !== null);
  return value === null || value === undefined ? "nothing yet" : `${Math.round(value * 10) / 10}${unit}`;
}

type Drawn = { current: { limit: number | undefined; marks: readonly TimeMark[] } };

function create(place: HTMLElement, data: PlotData, unit: string, top: number | undefined, drawn: Drawn): uPlot {
  const styles = getComputedStyle(document.documentElement);
  const colour = (name: string) => styles.getPropertyValue(name).trim();
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const options: uPlot.Options = {
    width: Math.max(200, place.clientWidth),
    height: HEIGHT,
    cursor: { drag: { x: false, y: false } },
    legend: { show: data.series.length > 1, live: false },
    scales: {
      x: { range: (_, low, high) => [Math.min(low, high - SHORTEST_SECONDS), high] },
      y: { range: (_, low, high) => [Math.min(0, low ?? 0), top ?? Math.max(1, (high ?? 1) * 1.1)] },
    },
    axes: [{ ...axis, values: (_, ticks) => ticks.map(timeOfDay), space: 90 }, { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => `${tick}${unit}`) }],
    series: [
      { label: "Time" },
      ...data.series.map((each, index): uPlot.Series => ({
        label: each.name,
        stroke: colour(COLOURS[index % COLOURS.length]!),
        width: each.points ? 0 : 2,
        points: { show: Boolean(each.points), size: 7, fill: colour(COLOURS[index % COLOURS.length]!) },
        paths: each.points ? () => null : uPlot.paths.stepped!({ align: 1 }),
        value: (_, value) => (value === null || value === undefined ? "–" : `${Math.round(value * 10) / 10}${unit}`),
      })),
    ],
    hooks: { draw: [(self) => drawLines(self, drawn.current, colour)] },
  };
  return new uPlot(options, [data.times, ...data.series.map((each) => each.values)] as uPlot.AlignedData, place);
}

function drawLines(self: uPlot, { limit, marks }: Drawn["current"], colour: (name: string) => string): void {
  const { ctx, bbox } = self;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  if (limit !== undefined) {
    const y = self.valToPos(limit, "y", true);
    ctx.strokeStyle = ctx.fillStyle = colour("--bad");
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    line(ctx, bbox.left, y, bbox.left + bbox.width, y);
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    ctx.fillText(`${limit}%`, bbox.left + 4, y + 4);
  }
  ctx.setLineDash([]);
  for (const mark of marks) {
    const x = self.valToPos(mark.at, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = colour("--warn");
    line(ctx, x, bbox.top, x, bbox.top + bbox.height);
    ctx.textBaseline = "bottom";
    ctx.textAlign = x > bbox.left + bbox.width / 2 ? "right" : "left";
    ctx.fillText(` ${mark.name} `, x, bbox.top + bbox.height - 4);
  }
  ctx.restore();
}

function line(ctx: CanvasRenderingContext2D, x: number, y: number, toX: number, toY: number): void {
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(toX, toY);
  ctx.stroke();
}
