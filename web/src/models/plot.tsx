// A plot of the last minutes.

import { effect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { timeOfDay } from "../measures";
import { theme } from "../theme";
import type { Mark } from "./machine_events";
import { held, hovered } from "./moment";

/** Times in Unix seconds, and the values of each line at them; null where nothing is drawn. */
export interface PlotData {
  times: number[];
  values: (number | null)[][];
}

interface Props {
  /** The description for assistive programs. */
  label: string;
  data: PlotData;
  /** Formats a value of the axis. */
  axis: (value: number) => string;
  /** The highest value of the axis; without it, that of the data. */
  top?: number;
  /** True if values are whole numbers. */
  whole?: boolean;
  /** A horizontal line, with its name. */
  limit?: { value: number; name: string };
  marks: readonly Mark[];
  /** True if marks have names. */
  named?: boolean;
}

export const COLOURS = 4; // of lines; further lines repeat them, dashed
const HEIGHT = 160;
const SHORTEST_SECONDS = 60;
const DASHES = [8, 4];
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000];
const TONES: Mark["tone"][] = ["bad", "warn", "good"]; // the order in which names get space
const ROWS = 3; // of names, from the bottom
const ROW_HEIGHT = 13;

export function Plot({ label, data, axis, top, whole = false, limit, marks, named = false }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const drawn = useRef<Drawn>({ limit, marks, named });
  drawn.current = { limit, marks, named };
  useEffect(() => {
    const here = place.current!; // observed a moment longer than it is on the page
    const make = () => {
      plot.current?.destroy();
      plot.current = create(here, data, { axis, top, whole }, drawn);
    };
    const endTheme = effect(() => {
      void theme.value;
      make();
    });
    const endHeld = effect(() => {
      void held.value;
      plot.current?.redraw(false);
    });
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", make);
    const sizes = new ResizeObserver(() => plot.current?.setSize({ width: here.clientWidth, height: HEIGHT }));
    sizes.observe(here);
    return () => {
      endTheme();
      endHeld();
      system.removeEventListener("change", make);
      sizes.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [data.values.length]);
  useEffect(() => plot.current?.setData(aligned(data)), [data]);
  return <div ref={place} role="img" aria-label={label} />;
}

interface Drawn {
  limit: Props["limit"];
  marks: readonly Mark[];
  named: boolean;
}

function aligned(data: PlotData): uPlot.AlignedData {
  return [data.times, ...data.values] as uPlot.AlignedData;
}

/** A colour of the style sheet, in a form that a canvas accepts. */
function colourOf(place: HTMLElement, name: string): string {
  place.style.color = `var(${name})`;
  const colour = getComputedStyle(place).color;
  place.style.color = "";
  return colour;
}

interface Scale {
  axis: Props["axis"];
  top: number | undefined;
  whole: boolean;
}

function create(place: HTMLElement, data: PlotData, scale: Scale, drawn: { current: Drawn }): uPlot {
  const colour = (name: string) => colourOf(place, name);
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const options: uPlot.Options = {
    width: Math.max(200, place.clientWidth),
    height: HEIGHT,
    cursor: { drag: { x: false, y: false }, y: false, sync: { key: "machine" } },
    legend: { show: false },
    scales: {
      x: { range: (_, low, high) => [Math.min(low, high - SHORTEST_SECONDS), high] },
      y: { range: (_, low, high) => [Math.min(0, low ?? 0), scale.top ?? highest(high)] },
    },
    axes: [
      { ...axis, size: 30, values: (_, ticks) => ticks.map(timeOfDay), space: 90 },
      { ...axis, size: 56, values: (_, ticks) => ticks.map(scale.axis), ...(scale.whole ? { incrs: WHOLE } : {}) },
    ],
    series: [
      {},
      ...data.values.map((_, index): uPlot.Series => ({
        stroke: colour(`--plot-${(index % COLOURS) + 1}`),
        width: 1.5,
        ...(index >= COLOURS ? { dash: DASHES } : {}),
        points: { show: false },
        paths: uPlot.paths.stepped!({ align: 1 }),
      })),
    ],
    hooks: {
      draw: [(self) => drawLines(self, drawn.current, colour)],
      setCursor: [(self) => (hovered.value = self.cursor.idx == null ? null : (self.data[0][self.cursor.idx] ?? null))],
      destroy: [() => (hovered.value = null)],
    },
  };
  return new uPlot(options, aligned(data), place);
}

/** The end of an axis for values up to `high`; 1 without values. */
function highest(high: number | null): number {
  return high ? high * 1.1 : 1;
}

function drawLines(self: uPlot, { limit, marks, named }: Drawn, colour: (name: string) => string): void {
  const { ctx, bbox } = self;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  if (limit) {
    const y = self.valToPos(limit.value, "y", true);
    ctx.strokeStyle = ctx.fillStyle = colour("--bad");
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    line(ctx, bbox.left, y, bbox.left + bbox.width, y);
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    ctx.fillText(limit.name, bbox.left + 4, y + 4);
  }
  ctx.setLineDash([2 * devicePixelRatio, 2 * devicePixelRatio]);
  const names: Name[] = [];
  for (const mark of TONES.flatMap((tone) => marks.filter((each) => each.tone === tone).reverse())) {
    const x = self.valToPos(mark.at, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = colour(`--${mark.tone}`);
    line(ctx, x, bbox.top, x, bbox.top + bbox.height);
    const name = named && placed(` ${mark.name} `, x, self, names);
    if (name) names.push({ ...name, colour: colour(`--${mark.tone}`) });
  }
  ctx.setLineDash([]);
  for (const name of names) drawName(self, name, colour("--card"));
  ctx.lineWidth = devicePixelRatio;
  const at = held.peek();
  if (at !== null) {
    const x = self.valToPos(at, "x", true);
    ctx.strokeStyle = colour("--text");
    line(ctx, x, bbox.top, x, bbox.top + bbox.height);
  }
  ctx.restore();
}

/** The name of a mark: its left and right edge, and its row from the bottom. */
interface Name {
  text: string;
  left: number;
  right: number;
  row: number;
  colour: string;
}

/** Places a name that ends at `right` among the others; null if no row has space. */
function placed(text: string, right: number, { ctx, bbox }: uPlot, names: readonly Name[]): Omit<Name, "colour"> | null {
  const left = right - ctx.measureText(text).width;
  if (left < bbox.left) return null;
  for (let row = 0; row < ROWS; row += 1) {
    if (names.every((each) => each.row !== row || each.right <= left || each.left >= right)) return { text, left, right, row };
  }
  return null;
}

/** Writes a name, outlined in the background colour because it may overlap lines. */
function drawName({ ctx, bbox }: uPlot, { text, right, row, colour }: Name, ground: string): void {
  const y = bbox.top + bbox.height - (4 + row * ROW_HEIGHT) * devicePixelRatio;
  ctx.strokeStyle = ground;
  ctx.fillStyle = colour;
  ctx.lineWidth = 3 * devicePixelRatio;
  ctx.textBaseline = "bottom";
  ctx.textAlign = "right";
  ctx.strokeText(text, right, y);
  ctx.fillText(text, right, y);
}

function line(ctx: CanvasRenderingContext2D, x: number, y: number, toX: number, toY: number): void {
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(toX, toY);
  ctx.stroke();
}
