// Human-readable numbers.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes with a unit, such as `1.5 GiB`. */
export function bytes(count: number | bigint): string {
  let value = Number(count);
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** Seconds as `0.42 s`, or as milliseconds if they are few. */
export function seconds(value: number): string {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return `${value < 10 ? value.toFixed(2) : value.toFixed(1)} s`;
}

/** A number with its significant digits: `0.42`, `7.3`, `1,204`. */
export function amount(value: number): string {
  const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 1 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** Unix seconds as a time of day, such as `14:03:09`. */
export function timeOfDay(at: number): string {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

/** Seconds as a position in a recording: `1:02.3`. */
export function clock(value: number): string {
  const tenths = Math.round(value * 10);
  return `${Math.floor(tenths / 600)}:${((tenths % 600) / 10).toFixed(1).padStart(4, "0")}`;
}
