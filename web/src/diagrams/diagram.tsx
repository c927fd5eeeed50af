// A diagram of an answer, as a picture. Mermaid loads with the first one; until then, and if the diagram is wrong or too
// large, it is its source.

import { computed, signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { CopyButton } from "../copy_button";
import { useScrolling } from "../scrolling";
import { theme } from "../theme";
import type { Drawing } from "./drawing";

const LONGEST = 10_000; // characters
const MOST_LINES = 200;
const MOST_WORDS = 500; // characters of them in the picture's description
const KEPT = 50; // drawings
const SMALLEST = 0.6; // of its size: a wider diagram scrolls

const system = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
system.addEventListener("change", () => (systemDark.value = system.matches));
const dark = computed(() => (theme.value === "system" ? systemDark.value : theme.value === "dark"));

type Drawn = { drawing: Drawing } | { problem: string };

// What was drawn already or is being drawn: an answer that is shown again shows it at once.
const kept = new Map<string, { coming: Promise<Drawn>; drawn?: Drawn }>();

function keeping(source: string, inDark: boolean) {
  const key = `${inDark} ${source}`;
  const known = kept.get(key);
  if (known) return known;
  if (kept.size >= KEPT) kept.delete(kept.keys().next().value!);
  const made: { coming: Promise<Drawn>; drawn?: Drawn } = { coming: drawn(source, inDark) };
  kept.set(key, made);
  void made.coming.then(
    (result) => (made.drawn = result),
    () => kept.delete(key), // mermaid was not loaded; the next one tries again
  );
  return made;
}

async function drawn(source: string, inDark: boolean): Promise<Drawn> {
  const drawing = await import("./drawing");
  try {
    return { drawing: await drawing.draw(source, inDark) };
  } catch (error) {
    // Without the list of all that the parser had expected, and without the whole source.
    const said = String((error as Error).message).split(/\nExpecting| for text:/)[0];
    return { problem: `Mermaid: ${said}` };
  }
}

function tooLarge(source: string): string {
  if (source.length > LONGEST) return `The diagram is longer than ${LONGEST} characters.`;
  if (source.split("\n").length > MOST_LINES) return `The diagram has more than ${MOST_LINES} lines.`;
  return "";
}

/** A diagram in mermaid's language. */
export function Diagram({ source }: { source: string }) {
  const large = tooLarge(source);
  const inDark = dark.value;
  const [result, setResult] = useState<Drawn | null>(() => (large ? null : keeping(source, inDark).drawn ?? null));
  const [asSource, setAsSource] = useState(false);
  const place = useScrolling<HTMLDivElement>(asSource ? null : result);
  useEffect(() => {
    let wanted = true;
    const show = (found: Drawn) => { if (wanted) setResult(found); };
    if (!large) keeping(source, inDark).coming.then(show, () => show({ problem: "The diagram cannot be drawn. Reload the page." }));
    return () => { wanted = false; };
  }, [source, inDark, large]);
  const drawing = result && "drawing" in result ? result.drawing : null;
  const problem = large || (result && "problem" in result ? result.problem : "");
  return (
    <figure class="codeblock diagram">
      <figcaption>
        <span>mermaid</span>
        <span>
          {drawing && <button type="button" class="quiet" onClick={() => setAsSource(!asSource)}>{asSource ? "Show diagram" : "Show source"}</button>}
          <CopyButton text={source} />
        </span>
      </figcaption>
      {drawing && !asSource ? (
        <div class="scroll" ref={place}>
          <img src={`data:image/svg+xml,${encodeURIComponent(drawing.svg)}`} width={Math.ceil(drawing.width)} height={Math.ceil(drawing.height)}
            style={{ minWidth: `${drawing.width * SMALLEST}px` }} alt={`Diagram: ${drawing.words.slice(0, MOST_WORDS)}`}
            onError={() => setResult({ problem: "The browser cannot show this diagram." })} />
        </div>
      ) : <pre tabIndex={0}><code>{source}</code></pre>}
      {problem && <pre class="problem" tabIndex={0}>{problem}</pre>}
    </figure>
  );
}
