// Light or dark theme: the system's, until the user selects another in this tab.

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const PLACE = "allm.theme";
const THEMES: Theme[] = ["system", "light", "dark"];
const stored = sessionStorage.getItem(PLACE) as Theme | null;

export const theme = signal<Theme>(stored && THEMES.includes(stored) ? stored : "system");

/** Selects the next of system, light, dark. */
export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!;
}

effect(() => {
  sessionStorage.setItem(PLACE, theme.value);
  document.documentElement.dataset["theme"] = theme.value;
});
