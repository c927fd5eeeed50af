// Which moment is looked at: now, or one of the last minutes, the same in all plots and figures.

import { computed, signal } from "@preact/signals";
import { looks, type Look } from "./machine";

/** Where somebody has put the slider, in Unix seconds; null is now. */
export const held = signal<number | null>(null);
/** Where the mouse is in a plot; null where it is in none. */
export const hovered = signal<number | null>(null);

/** How everything was at that moment; null while nothing is known. */
export const looked = computed<Look | null>(() => {
  const all = looks.value;
  const at = hovered.value ?? held.value;
  const last = all.at(-1) ?? null;
  return at === null ? last : (all.findLast((each) => each.at <= at) ?? all[0] ?? null);
});
