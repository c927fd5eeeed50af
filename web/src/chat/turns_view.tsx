// The turns of a conversation: messages and answers, each with its versions, and editable.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { CopyButton } from "../copy_button";
import { CodeBlock } from "../markdown";
import { sayAgain, show } from "./answering";
import { AnswerView } from "./answer_view";
import { putTurn } from "./conversations";
import { isRunning, pathTo, versionsOf, type Conversation, type Message, type Turn } from "./tree";

const NEAR_END = 120; // pixels: a user who has scrolled further up is reading there

export function Turns({ conversation, model }: { conversation: Conversation; model: string }) {
  const end = useRef<HTMLDivElement>(null);
  const [editing, setEditing] = useState("");
  const path = pathTo(conversation, conversation.leaf);
  const running = isRunning(conversation);
  const follow = (always: boolean) => {
    const left = document.documentElement.scrollHeight - innerHeight - scrollY;
    if (always || left < NEAR_END) end.current?.scrollIntoView({ block: "end" });
  };
  useEffect(() => follow(true), [conversation.id, path.length]);
  return (
    <div class="turns" role="log" aria-label="Messages" aria-live="off">
      {/* Keys by place: another version takes the place of the one before, and the focus stays. */}
      {path.map((turn, at) => {
        const tools = { conversation, model, onEdit: () => setEditing(turn.id), versions: <Versions conversation={conversation} turn={turn} disabled={running} /> };
        if (editing === turn.id) return <Editor key={at} turn={turn} conversation={conversation} model={model} onDone={() => setEditing("")} />;
        return turn.role === "user"
          ? <MessageView key={at} message={turn} {...tools} running={running} />
          : <AnswerView key={at} stored={turn} last={at === path.length - 1} running={running} onGrowth={() => follow(false)} {...tools} />;
      })}
      <div ref={end} class="end" />
      <p class="hidden" role="status">{running ? "The model is answering" : "The answer is complete"}</p>
    </div>
  );
}

/** The number of the shown version, and buttons for the others. */
function Versions({ conversation, turn, disabled }: { conversation: Conversation; turn: Turn; disabled: boolean }) {
  const all = versionsOf(conversation, turn);
  if (all.length < 2) return null;
  const at = all.findIndex(({ id }) => id === turn.id);
  const turnTo = (step: number) => show(conversation, all[(at + step + all.length) % all.length]!.id);
  return (
    <span class="versions" role="group" aria-label="Versions">
      <button type="button" class="quiet" aria-label="Previous version" disabled={disabled} onClick={() => turnTo(-1)}>‹</button>
      <span role="status">{at + 1} of {all.length}</span>
      <button type="button" class="quiet" aria-label="Next version" disabled={disabled} onClick={() => turnTo(1)}>›</button>
    </span>
  );
}

interface MessageProps {
  message: Message;
  running: boolean;
  onEdit: () => void;
  versions: ComponentChildren;
}

function MessageView({ message, running, onEdit, versions }: MessageProps) {
  return (
    <article class="turn user" aria-label="You">
      <p class="who">You</p>
      {message.files.map((file, at) => (
        <details key={at} class="attached"><summary>{file.name}</summary><CodeBlock text={file.text} language={file.name.split(".").pop() ?? ""} /></details>
      ))}
      {message.text && <p class="said">{message.text}</p>}
      <div class="below">
        {versions}
        <CopyButton text={message.text} />
        <button type="button" class="quiet" disabled={running} onClick={onEdit}>Edit</button>
      </div>
    </article>
  );
}

function Editor({ turn, conversation, model, onDone }: { turn: Turn; conversation: Conversation; model: string; onDone: () => void }) {
  const [text, setText] = useState(turn.text);
  const area = useRef<HTMLTextAreaElement>(null);
  const possible = Boolean(text.trim());
  useLayoutEffect(() => area.current?.focus(), []);
  const keep = () => {
    if (text !== turn.text) putTurn(conversation.id, turn.role === "user" ? { ...turn, text } : { ...turn, text, edited: true });
    onDone();
  };
  const send = (event: Event) => {
    event.preventDefault();
    if (turn.role !== "user") return keep();
    void sayAgain(conversation, turn, text, model);
    onDone();
  };
  return (
    <form class={`turn editor ${turn.role === "user" ? "user" : "answer"}`} onSubmit={send} onKeyDown={(event) => event.key === "Escape" && onDone()}>
      <label class="who" for="edited">{turn.role === "user" ? "Your message" : `Answer from ${turn.model}`}</label>
      <textarea id="edited" ref={area} rows={Math.min(20, turn.text.split("\n").length + 2)} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <div class="row end">
        <button type="button" class="quiet" onClick={onDone}>Cancel</button>
        {turn.role === "user" && <button type="button" disabled={!possible} onClick={keep}>Save</button>}
        <button type="submit" class="primary" disabled={!possible || (turn.role === "user" && !model)}>{turn.role === "user" ? "Send as a new version" : "Save"}</button>
      </div>
    </form>
  );
}
