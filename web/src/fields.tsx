// Fields of forms, each with its label, its hint and its error.

import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

interface FieldProps {
  label: string;
  hint?: ComponentChildren;
  problem?: string | null;
}

interface TextFieldProps extends FieldProps {
  value: string;
  onText: (text: string) => void;
  placeholder?: string;
  required?: boolean;
}

/** One line of text, or a number written as such. */
export function TextField({ value, onText, placeholder, required, type = "text", ...about }: TextFieldProps & { type?: "text" | "number" }) {
  const id = useId();
  return (
    <Labelled id={id} {...about}>
      <input id={id} value={value} placeholder={placeholder} required={required} spellcheck={false} autocomplete="off"
        inputMode={type === "number" ? "decimal" : undefined} {...described(id, about)}
        onInput={(event) => onText(event.currentTarget.value)} />
    </Labelled>
  );
}

/** Numbers side by side; the first error is shown below all of them, where nothing moves when it appears. */
export function NumberFields({ fields }: { fields: (Omit<TextFieldProps, "hint" | "required"> & { problem: string | null })[] }) {
  const id = useId();
  const problem = fields.find((field) => field.problem)?.problem;
  return (
    <div class="numbers">
      <div class="grid">
        {fields.map(({ label, value, placeholder, onText, problem: own }, at) => (
          <div class="field" key={label}>
            <label for={`${id}-${at}`}>{label}</label>
            <input id={`${id}-${at}`} value={value} placeholder={placeholder} autocomplete="off" inputMode="decimal"
              aria-invalid={own ? true : undefined} aria-describedby={own ? `${id}-problem` : undefined} onInput={(event) => onText(event.currentTarget.value)} />
          </div>
        ))}
      </div>
      <p class="problem" id={`${id}-problem`} role="alert">{problem}</p>
    </div>
  );
}

export interface Limits {
  label: string;
  low: number;
  high: number;
  whole: boolean;
}

/** The error in a number, as a sentence; null if it is valid or empty. */
export function numberProblem(text: string, { label, low, high, whole }: Limits): string | null {
  if (!text.trim()) return null;
  const value = Number(text);
  const right = Number.isFinite(value) && value >= low && value <= high && (!whole || Number.isInteger(value));
  return right ? null : `${label} must be ${whole ? "a whole number" : "a number"} from ${low} to ${high}.`;
}

/** The button that submits its form, or stops what the form began. */
export function SubmitOrStop({ busy, possible, onStop, children }: { busy: boolean; possible: boolean; onStop: () => void; children: ComponentChildren }) {
  if (!busy) return <button type="submit" class="primary" disabled={!possible}>{children}</button>;
  const stop = (event: Event) => {
    event.preventDefault(); // the element becomes the one that submits before the browser asks which it is
    onStop();
  };
  return <button type="button" class="primary" onClick={stop}>Stop</button>;
}

/** Several lines of text. */
export function AreaField({ value, onText, placeholder, rows = 3, code = false, ...about }: TextFieldProps & { rows?: number; code?: boolean }) {
  const id = useId();
  return (
    <Labelled id={id} {...about}>
      <textarea id={id} value={value} rows={rows} placeholder={placeholder} spellcheck={!code} class={code ? "code" : ""}
        {...described(id, about)} onInput={(event) => onText(event.currentTarget.value)} />
    </Labelled>
  );
}

/** One of some values. */
export function ChoiceField({ value, onText, choices, ...about }: FieldProps & { value: string; onText: (text: string) => void; choices: [string, string][] }) {
  const id = useId();
  return (
    <Labelled id={id} {...about}>
      <select id={id} value={value} {...described(id, about)} onChange={(event) => onText(event.currentTarget.value)}>
        {choices.map(([key, name]) => <option key={key} value={key}>{name}</option>)}
      </select>
    </Labelled>
  );
}

function Labelled({ id, label, hint, problem, children }: FieldProps & { id: string; children: ComponentChildren }) {
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children}
      {hint && <span class="hint" id={`${id}-hint`}>{hint}</span>}
      {/* A field that can be wrong has room for its error from the start: nothing moves while somebody types. */}
      {problem !== undefined && <span class="problem" id={`${id}-problem`} role="alert">{problem}</span>}
    </div>
  );
}

function described(id: string, { hint, problem }: FieldProps) {
  const by = [hint && `${id}-hint`, problem && `${id}-problem`].filter(Boolean).join(" ");
  return { "aria-describedby": by || undefined, "aria-invalid": problem ? true : undefined };
}
