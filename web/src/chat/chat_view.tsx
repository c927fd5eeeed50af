// Chat with a model.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Modality } from "../../generated/allm/models/v1/model_pb";
import { ModelPicker, picked } from "../model_picker";
import { Empty } from "../notes";
import { AnswerView } from "./answer_view";
import { clear, running, say, stop, turns } from "./conversation";
import { change, isWrong, settings } from "./settings";
import { SettingsPanel } from "./settings_panel";

const draft = signal("");
const NEAR_END = 120; // pixels: a user who has scrolled further up is reading there

export function ChatView() {
  const model = picked("chat", Modality.TEXT, settings.value.model);
  return (
    <div class="split">
      <aside aria-label="Settings">
        <ModelPicker capability="chat" modality={Modality.TEXT} value={settings.value.model} onPick={(id) => change({ model: id })} />
        <details class="panel" open={innerWidth > 900}>
          <summary>Settings</summary>
          <SettingsPanel />
        </details>
      </aside>
      <section class="talk" aria-label="Conversation">
        <h1 class="hidden">Chat</h1>
        <Turns model={model?.id ?? ""} />
        <Composer model={model?.id ?? ""} />
      </section>
    </div>
  );
}

function Turns({ model }: { model: string }) {
  const end = useRef<HTMLDivElement>(null);
  const all = turns.value;
  useEffect(() => {
    const left = document.documentElement.scrollHeight - innerHeight - scrollY;
    if (left < NEAR_END || all.at(-1)?.role === "user") end.current?.scrollIntoView({ block: "end" });
  }, [all]);
  if (!all.length) {
    return (
      <Empty title={model ? `Chat with ${model}` : "No chat model is ready"}>
        {model
          ? <p>Type a message below. Answers are streamed, and you can stop them at any time.</p>
          : <p>Register one under <a href="#/models">Models</a>, or wait until one is ready. It then appears here automatically.</p>}
      </Empty>
    );
  }
  return (
    <div class="turns" role="log" aria-label="Messages" aria-live="off">
      {all.map((turn, at) => turn.role === "user"
        ? <article key={at} class="turn user" aria-label="You"><p class="who">You</p><p class="said">{turn.text}</p></article>
        : <AnswerView key={at} answer={turn} at={at} last={at === all.length - 1} model={model} />)}
      <div ref={end} class="end" />
      <p class="hidden" role="status">{running.value ? "The model is answering" : "The answer is complete"}</p>
    </div>
  );
}

function Composer({ model }: { model: string }) {
  const possible = Boolean(model && draft.value.trim() && !running.value && !isWrong(settings.value));
  const send = () => {
    if (!possible) return;
    const text = draft.value;
    draft.value = "";
    void say(text, model);
  };
  const onStop = (event: Event) => {
    event.preventDefault(); // the element becomes the one that submits before the browser asks which it is
    stop();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape" && running.value) stop();
  };
  return (
    <form class="composer" onSubmit={(event) => { event.preventDefault(); send(); }}>
      <label for="message" class="hidden">Message</label>
      <textarea id="message" rows={2} value={draft.value} placeholder="Message" onKeyDown={onKeyDown}
        aria-describedby="message-hint" onInput={(event) => (draft.value = event.currentTarget.value)} />
      <div class="row end">
        <span class="hint" id="message-hint">{isWrong(settings.value) ? "The settings contain an error." : "Press Enter to send, Shift+Enter for a new line"}</span>
        {turns.value.length > 0 && <button type="button" class="quiet" onClick={clear}>New conversation</button>}
        {running.value
          ? <button type="button" class="primary" onClick={onStop}>Stop</button>
          : <button type="submit" class="primary" disabled={!possible}>Send</button>}
      </div>
    </form>
  );
}
