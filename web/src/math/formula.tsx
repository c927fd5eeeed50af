// A formula of an answer. KaTeX loads with the first one; until then, and if it is wrong, the formula is its source.

import { signal } from "@preact/signals";
import type { ComponentChild } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { useScrolling } from "../scrolling";

const LONGEST = 4_000; // characters

const drawing = signal<typeof import("./mathml") | null>(null);
const failed = signal(false);
let loading: Promise<void> | null = null;

/** Loads KaTeX, once; if that fails, the next formula tries again. */
function load(): Promise<void> {
  return (loading ??= import("./mathml").then(
    (loaded) => void (drawing.value = loaded),
    () => { failed.value = true; loading = null; },
  ));
}

/** A formula in a line of text, or in a line of its own if `display`. A `pending` one is not complete yet. */
export function Formula({ source, display, pending = false }: { source: string; display: boolean; pending?: boolean }) {
  const long = source.length > LONGEST;
  useEffect(() => { if (!drawing.value && !long) void load(); }, [long]);
  const module = drawing.value;
  const [drawn, problem] = useMemo<[ComponentChild, string]>(() => {
    if (long) return [null, `The formula is longer than ${LONGEST} characters.`];
    if (!module || pending) return [null, ""];
    try {
      return [module.mathml(source, display), ""];
    } catch (error) {
      return [null, `LaTeX: ${(error as Error).message}`];
    }
  }, [module, source, display, pending, long]);
  const place = useScrolling<HTMLSpanElement>(drawn);
  const said = problem || (!module && failed.value ? "The formula cannot be drawn. Reload the page." : "");
  return (
    <span class={display ? "formula display" : "formula"}>
      <span ref={place} class="scroll">{drawn ?? <code>{source}</code>}</span>
      {said && <span class="problem">{said}</span>}
    </span>
  );
}
