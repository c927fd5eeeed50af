// Checks of the image form before it is sent; the server checks the model's own limits.

import { numberProblem, type Limits } from "../fields";
import type { ImageForm } from "./generation";

const NUMBERS: Partial<Record<keyof ImageForm, Limits>> = {
  width: { label: "Width", low: 1, high: 16384, whole: true },
  height: { label: "Height", low: 1, high: 16384, whole: true },
  steps: { label: "Steps", low: 1, high: 1000, whole: true },
  guidance: { label: "Guidance", low: 0, high: 100, whole: false },
  seed: { label: "Seed", low: 0, high: Number.MAX_SAFE_INTEGER, whole: true },
  count: { label: "Images", low: 1, high: 10, whole: true },
  strength: { label: "Strength", low: 0.01, high: 1, whole: false },
};

/** The error in a field, as a sentence; null if it has none. */
export function problem(name: keyof ImageForm, form: ImageForm): string | null {
  const limits = NUMBERS[name];
  const text = form[name];
  const other = name === "width" ? form.height : name === "height" ? form.width : "";
  if (!text.trim() && other.trim()) return "Enter both width and height, or neither.";
  return limits ? numberProblem(text, limits) : null;
}
