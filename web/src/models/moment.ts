// The selected moment, the same in all plots and figures: now, or within the last minutes.

import { computed, signal } from "@preact/signals";
import { samples, type TimedSample } from "./machine";

/** The position of the slider, in Unix seconds; null is now. */
export const held = signal<number | null>(null);
/** The position of the mouse in a plot, in Unix seconds; null if it is in none. */
export const hovered = signal<number | null>(null);

/** The sample of that moment; null without samples. */
export const shownSample = computed<TimedSample | null>(() => {
  const all = samples.value;
  const at = hovered.value ?? held.value;
  const last = all.at(-1) ?? null;
  return at === null ? last : (all.findLast((each) => each.at <= at) ?? all[0] ?? null);
});
