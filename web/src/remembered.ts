// The last values of forms, which this browser keeps.

import { effect, signal, type Signal } from "@preact/signals";

/** A signal that begins with its last value in `storage`, if it has the form of `initial`. */
export function remembered<T extends object>(name: string, initial: T, storage = localStorage): Signal<T> {
  const place = `allm.${name}`;
  const value = signal(alike(initial, last(storage, place)));
  effect(() => {
    const now = JSON.stringify(value.value);
    try {
      storage.setItem(place, now);
    } catch {
      // A browser that stores nothing says so where conversations, images and transcripts are.
    }
  });
  return value;
}

/** The value with the fields and types of `initial`: what `stored` lacks or has in another type counts as initial. */
export function alike<T extends object>(initial: T, stored: unknown): T {
  const known = (stored ?? {}) as Record<string, unknown>;
  const read = Object.entries(initial).map(([name, value]) => {
    if (typeof value === "object") return [name, alike(value, known[name])];
    return [name, typeof known[name] === typeof value ? known[name] : value];
  });
  return Object.fromEntries(read);
}

function last(storage: Storage, place: string): unknown {
  try {
    return JSON.parse(storage.getItem(place) ?? "null");
  } catch {
    return null; // of another version of the console, or a browser that stores nothing
  }
}
