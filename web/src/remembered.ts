// The last values of forms, which this browser keeps.

import { effect, signal, type Signal } from "@preact/signals";

/** A signal that begins with its last value; fields that `initial` does not have are dropped. */
export function remembered<T extends object>(name: string, initial: T): Signal<T> {
  const place = `allm.${name}`;
  const value = signal({ ...initial, ...last(place, initial) });
  effect(() => {
    try {
      localStorage.setItem(place, JSON.stringify(value.value));
    } catch {
      // A browser that stores nothing says so where images and transcripts are.
    }
  });
  return value;
}

function last<T extends object>(place: string, initial: T): Partial<T> {
  try {
    const entries = Object.entries(JSON.parse(localStorage.getItem(place) ?? "{}"));
    return Object.fromEntries(entries.filter(([name, value]) => typeof value === typeof initial[name as keyof T])) as Partial<T>;
  } catch {
    return {}; // not JSON, or a browser that stores nothing
  }
}
