// System prompts that the user keeps under a name.

import { signal } from "@preact/signals";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { newId, store, type Kept } from "../database";
import { change, settings } from "./settings";

interface Preset extends Kept {
  name: string;
  text: string;
}

const kept = store<Preset>("presets");
const presets = signal<readonly Preset[]>([]);

async function load(): Promise<void> {
  const all = await kept.all().catch(() => []);
  presets.value = all.sort((one, other) => one.name.localeCompare(other.name));
}

kept.onChange(() => void load());
void load();

/** Keeps a system prompt under a name, in place of one with the same name. */
async function keep(name: string, text: string): Promise<void> {
  const id = presets.peek().find((each) => each.name === name)?.id ?? newId();
  await kept.put({ id, at: Date.now(), name, text }).then(load, () => undefined);
}

/** A list of the presets, and the forms to save one and to delete one. */
export function Presets() {
  const id = useId();
  const [naming, setNaming] = useState<string | null>(null);
  const input = useRef<HTMLInputElement>(null);
  const list = useRef<HTMLSelectElement>(null);
  useLayoutEffect(() => input.current?.focus(), [naming !== null]);
  const text = settings.value.system;
  const chosen = presets.value.find((each) => each.text === text && text);
  const done = () => {
    setNaming(null);
    list.current?.focus(); // the focused element goes
  };
  const saveAs = (event: Event) => {
    event.preventDefault();
    if (!naming?.trim()) return;
    void keep(naming.trim(), text);
    done();
  };
  const remove = () => {
    void kept.remove(chosen!.id).then(load, () => undefined);
    done();
  };
  const pick = (wanted: string) => change({ system: presets.value.find((each) => each.id === wanted)?.text ?? "" });
  return (
    <div class="field presets">
      <label for={id}>Preset of the system prompt</label>
      <select id={id} ref={list} value={chosen?.id ?? ""} onChange={(event) => pick(event.currentTarget.value)}>
        <option value="">{text && !chosen ? "Not saved" : "None"}</option>
        {presets.value.map((each) => <option key={each.id} value={each.id}>{each.name}</option>)}
      </select>
      {naming === null
        ? (
          <div class="row">
            <button type="button" class="quiet" disabled={!text.trim() || Boolean(chosen)} onClick={() => setNaming("")}>Save as preset</button>
            <button type="button" class="quiet" disabled={!chosen} onClick={remove}>Delete preset</button>
          </div>
        )
        : (
          <form class="row" onSubmit={saveAs} onKeyDown={(event) => event.key === "Escape" && done()}>
            <input aria-label="Name of the preset" placeholder="Name" value={naming} ref={input}
              onInput={(event) => setNaming(event.currentTarget.value)} />
            <button type="submit" disabled={!naming.trim()}>Save</button>
            <button type="button" class="quiet" onClick={done}>Cancel</button>
          </form>
        )}
    </div>
  );
}
