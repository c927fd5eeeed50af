// Waiting that ends early when there is reason to hope.

import { effect, signal } from "@preact/signals";

/** Whether somebody may be looking: the tab is not behind others. */
export const seen = signal(!document.hidden);
document.addEventListener("visibilitychange", () => (seen.value = !document.hidden));

/** Resolves once a condition on signals holds. */
export function until(condition: () => boolean): Promise<void> {
  return new Promise((resolve) => {
    const stop = effect(() => {
      if (!condition()) return;
      resolve();
      queueMicrotask(() => stop());
    });
  });
}

/** After so many milliseconds, or as soon as the network is back or somebody looks at the page again. */
export function readyAgain(milliseconds: number): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      removeEventListener("online", done);
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    const look = () => {
      if (!document.hidden) done();
    };
    const timer = setTimeout(done, milliseconds);
    addEventListener("online", done);
    document.addEventListener("visibilitychange", look);
  });
}
