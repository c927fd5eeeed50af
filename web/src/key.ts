// The API key: kept by this tab alone, gone with it.

import { signal } from "@preact/signals";

const PLACE = "allm.key";

/** The key that calls carry; empty where there is none. */
export const key = signal(sessionStorage.getItem(PLACE) ?? "");
/** Why a key is asked for; null while none is. */
export const keyWanted = signal<string | null>(null);

/** From now on calls carry this key; an empty one forgets the last. */
export function useKey(text: string): void {
  if (text) sessionStorage.setItem(PLACE, text);
  else sessionStorage.removeItem(PLACE);
  keyWanted.value = null;
  key.value = text;
}
