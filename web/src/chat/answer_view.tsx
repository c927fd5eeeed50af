// One answer of a model: reasoning, text, tool calls, speed, and the request as code.

import type { ComponentChildren } from "preact";
import { useEffect, useId, useState } from "preact/hooks";
import { Modality } from "../../generated/allm/models/v1/model_pb";
import { FinishReason } from "../../generated/allm/text/v1/chat_pb";
import { CopyButton } from "../copy_button";
import { CodeBlock, Markdown } from "../markdown";
import { seconds } from "../measures";
import { waitingFor } from "../models/waiting_for";
import { FailureNote } from "../notes";
import { giveBack, isHere, latest, regenerate } from "./answering";
import { focusMessage } from "./focus";
import { requestFor } from "./request";
import { LANGUAGES, snippet, type Language } from "./snippets";
import { firstSeconds, rate } from "./timings";
import { pathTo, type Answer, type Call, type Conversation } from "./tree";

interface AnswerProps {
  stored: Answer;
  conversation: Conversation;
  model: string;
  last: boolean;
  running: boolean;
  edit: ComponentChildren;
  onGrowth: () => void;
  versions: ComponentChildren;
}

export function AnswerView({ stored, conversation, model, last, running, edit, onGrowth, versions }: AnswerProps) {
  const answer = latest(stored);
  useEffect(onGrowth, [answer]);
  const again = () => {
    void regenerate(conversation, answer, model);
    focusMessage(); // the button goes, and Escape stops the answer there
  };
  return (
    <article class="turn answer" aria-busy={answer.state === "running"} aria-label={`Answer from ${answer.model}`}>
      <p class="who">{answer.model}{answer.edited && " (edited)"}</p>
      {answer.reasoning && (
        <details class="thoughts" open={!answer.text && answer.state === "running"}>
          <summary>Reasoning</summary>
          <Markdown text={answer.reasoning} open={answer.state === "running"} />
        </details>
      )}
      {answer.text && (answer.settings.schema.trim() && isJson(answer.text)
        ? <CodeBlock text={JSON.stringify(JSON.parse(answer.text), null, 2)} language="json" />
        : <Markdown text={answer.text} open={answer.state === "running"} />)}
      {answer.state === "running" && answer.firstAt === null && <Waiting answer={answer} />}
      {answer.calls.length > 0 && <Calls key={answer.id} {...{ answer, conversation, model }} open={last} />}
      {answer.failure && <FailureNote failure={answer.failure} />}
      {answer.finish === FinishReason.LENGTH && <p class="note">The answer reached the maximum length.</p>}
      {answer.state !== "running" && (
        <Below {...{ answer, conversation }}>
          {versions}
          {answer.text && <CopyButton text={answer.text} label="Copy answer" />}
          {edit}
          <button type="button" class="quiet" disabled={running || !model} onClick={again}>
            {answer.failure && answer.failure.kind !== "stopped" ? "Try again" : "Regenerate"}
          </button>
        </Below>
      )}
    </article>
  );
}

/** What the answer waits for, and since when. */
function Waiting({ answer }: { answer: Answer }) {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const waited = Math.floor((now - answer.askedAt) / 1000);
  const reason = isHere(answer.id) ? waitingFor(Modality.TEXT, answer.model) || "Waiting for the first token…" : "Another tab receives this answer…";
  return <p class="hint"><span role="status">{reason}</span>{waited > 0 && isHere(answer.id) && <span aria-hidden="true"> {waited} s</span>}</p>;
}

function Below({ answer, conversation, children }: { answer: Answer; conversation: Conversation; children: ComponentChildren }) {
  const [chosen, choose] = useState({ answer: "", language: "" as Language | "" });
  const language = chosen.answer === answer.id ? chosen.language : ""; // another version may take this one's place
  const id = useId();
  const code = () => snippet(language as Language, requestFor(answer.model, pathTo(conversation, answer.parent), answer.settings), answer.settings);
  return (
    <>
      <div class="below">
        <Figures answer={answer} />
        {children}
        <label class="inline" for={id}>Copy as
          <select id={id} value={language} onChange={(event) => choose({ answer: answer.id, language: event.currentTarget.value as Language })}>
            <option value="">…</option>
            {LANGUAGES.map((each) => <option key={each} value={each}>{each}</option>)}
          </select>
        </label>
      </div>
      {language && <CodeBlock text={code()} language={language} />}
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

function Calls({ answer, conversation, open, model }: { answer: Answer; conversation: Conversation; open: boolean; model: string }) {
  const [results, setResults] = useState(new Map<string, string>());
  const missing = answer.calls.some((call) => call.result === null && !results.get(call.id)?.trim());
  const waits = open && answer.state === "done";
  return (
    <div class="calls">
      {answer.calls.map((call) => (
        <CallView key={call.id} call={call} waits={waits} text={results.get(call.id) ?? ""}
          onText={(text) => setResults(new Map(results).set(call.id, text))} />
      ))}
      {waits && <button type="button" class="primary" disabled={missing} onClick={() => void giveBack(conversation, answer, results, model)}>Submit tool result</button>}
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
