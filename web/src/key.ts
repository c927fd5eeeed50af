// The API key, which only this tab keeps, until it closes.

import { signal } from "@preact/signals";

const PLACE = "allm.key";

/** The key of calls; empty if there is none. */
export const key = signal(sessionStorage.getItem(PLACE) ?? "");
/** The reason why the console asks for a key; null while it does not. */
export const keyWanted = signal<string | null>(null);

/** Sets the key of further calls; an empty one removes it. */
export function useKey(text: string): void {
  if (text) sessionStorage.setItem(PLACE, text);
  else sessionStorage.removeItem(PLACE);
  keyWanted.value = null;
  key.value = text;
}
