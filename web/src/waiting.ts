// Waits that end early if a retry may succeed.

import { effect, signal } from "@preact/signals";

/** True while the tab is visible. */
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

/** Resolves after a time, or as soon as the network is back or the page is visible again. */
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
