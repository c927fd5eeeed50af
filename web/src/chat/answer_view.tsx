// One answer of a model: reasoning, text, tool calls, speed, and the request as code.

import { useId, useState } from "preact/hooks";
import { FinishReason } from "../../generated/allm/text/v1/chat_pb";
import { CopyButton } from "../copy_button";
import { CodeBlock, Markdown } from "../markdown";
import { seconds } from "../measures";
import { FailureNote } from "../notes";
import { again, giveBack, running, type Answer, type Call } from "./conversation";
import { settings } from "./settings";
import { LANGUAGES, snippet, type Language } from "./snippets";
import { firstSeconds, rate } from "./timings";

export function AnswerView({ answer, at, last, model }: { answer: Answer; at: number; last: boolean; model: string }) {
  return (
    <article class="turn answer" aria-busy={answer.state === "running"} aria-label={`Answer from ${answer.model}`}>
      <p class="who">{answer.model}</p>
      {answer.reasoning && (
        <details class="thoughts" open={!answer.text && answer.state === "running"}>
          <summary>Reasoning</summary>
          <Markdown text={answer.reasoning} />
        </details>
      )}
      {answer.text && (settings.value.schema.trim() && isJson(answer.text)
        ? <CodeBlock text={JSON.stringify(JSON.parse(answer.text), null, 2)} language="json" />
        : <Markdown text={answer.text} />)}
      {answer.state === "running" && answer.firstAt === null && <p class="hint" role="status">Waiting for the first token…</p>}
      {answer.calls.length > 0 && <Calls answer={answer} at={at} open={last} model={model} />}
      {answer.failure && <FailureNote failure={answer.failure} />}
      {answer.finish === FinishReason.LENGTH && <p class="note">The answer reached the maximum length.</p>}
      {answer.state !== "running" && <Below answer={answer} last={last} model={model} />}
    </article>
  );
}

function Below({ answer, last, model }: { answer: Answer; last: boolean; model: string }) {
  const [language, setLanguage] = useState<Language | "">("");
  const id = useId();
  return (
    <>
      <div class="below">
        <Figures answer={answer} />
        {answer.text && <CopyButton text={answer.text} label="Copy answer" />}
        {last && <button type="button" class="quiet" disabled={running.value} onClick={() => void again(model)}>Regenerate</button>}
        <label class="inline" for={id}>Copy as
          <select id={id} value={language} onChange={(event) => setLanguage(event.currentTarget.value as Language)}>
            <option value="">…</option>
            {LANGUAGES.map((each) => <option key={each} value={each}>{each}</option>)}
          </select>
        </label>
      </div>
      {language && <CodeBlock text={snippet(language, answer.request, settings.value)} language={language} />}
    </>
  );
}

function Figures({ answer }: { answer: Answer }) {
  const first = firstSeconds(answer);
  const speed = rate(answer);
  return (
    <span class="figures">
      {first !== null && <span>first token {seconds(first)}</span>}
      {speed !== null && <span>{speed.toFixed(speed < 10 ? 1 : 0)} tokens/s</span>}
      {answer.tokens !== null && <span>{answer.tokens} tokens</span>}
    </span>
  );
}

function Calls({ answer, at, open, model }: { answer: Answer; at: number; open: boolean; model: string }) {
  const [results, setResults] = useState(new Map<string, string>());
  const missing = answer.calls.some((call) => call.result === null && !results.get(call.id)?.trim());
  const waits = open && answer.state === "done";
  return (
    <div class="calls">
      {answer.calls.map((call) => (
        <CallView key={call.id} call={call} waits={waits} text={results.get(call.id) ?? ""}
          onText={(text) => setResults(new Map(results).set(call.id, text))} />
      ))}
      {waits && <button type="button" class="primary" disabled={missing} onClick={() => void giveBack(at, results, model)}>Submit tool result</button>}
    </div>
  );
}

function CallView({ call, waits, text, onText }: { call: Call; waits: boolean; text: string; onText: (text: string) => void }) {
  const id = useId();
  return (
    <section class="call" aria-label={`Tool call: ${call.name}`}>
      <p class="who">Tool call <code>{call.name}</code></p>
      <pre tabIndex={0}><code>{pretty(call.args)}</code></pre>
      {call.result !== null && <><p class="who">Result</p><pre tabIndex={0}><code>{call.result}</code></pre></>}
      {call.result === null && waits && (
        <div class="field">
          <label for={id}>Result of {call.name}</label>
          <textarea id={id} class="code" rows={2} value={text} onInput={(event) => onText(event.currentTarget.value)} />
        </div>
      )}
    </section>
  );
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function pretty(text: string): string {
  return isJson(text) ? JSON.stringify(JSON.parse(text), null, 2) : text;
}
