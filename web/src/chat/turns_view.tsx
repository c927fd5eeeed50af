// The turns of a conversation: messages and answers, each with its versions, and editable.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { CopyButton } from "../copy_button";
import { CodeBlock } from "../markdown";
import { sayAgain, show } from "./answering";
import { AnswerView } from "./answer_view";
import { putTurn } from "./conversations";
import { MESSAGE } from "./focus";
import { isPicture, isRunning, pathTo, versionsOf, type AttachedFile, type Conversation, type Message, type Turn } from "./tree";

const NEAR_END = 120; // pixels: a user who has scrolled further up is reading there

export function Turns({ conversation, model }: { conversation: Conversation; model: string }) {
  const end = useRef<HTMLDivElement>(null);
  const [editing, setEditing] = useState("");
  const left = useRef("");
  const path = pathTo(conversation, conversation.leaf);
  const running = isRunning(conversation);
  const follow = (always: boolean) => {
    const below = document.documentElement.scrollHeight - innerHeight - scrollY;
    if (always || below < NEAR_END) end.current?.scrollIntoView({ block: "end" });
  };
  const leave = (focused: string) => {
    left.current = focused;
    setEditing("");
  };
  useLayoutEffect(() => {
    if (!editing && left.current) document.getElementById(left.current)?.focus();
  }, [editing]);
  useEffect(() => follow(true), [conversation.id, path.length]);
  return (
    <div class="turns" role="log" aria-label="Messages" aria-live="off">
      {/* Keys by place: another version takes the place of the one before, and the focus stays. */}
      {path.map((turn, at) => {
        const tools = {
          conversation,
          model,
          edit: <EditButton id={turn.id} disabled={running} onEdit={() => setEditing(turn.id)} />,
          versions: <Versions conversation={conversation} turn={turn} disabled={running} />,
        };
        if (editing === turn.id) return <Editor key={at} turn={turn} conversation={conversation} model={model} onDone={leave} />;
        return turn.role === "user"
          ? <MessageView key={at} message={turn} {...tools} />
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

function EditButton({ id, disabled, onEdit }: { id: string; disabled: boolean; onEdit: () => void }) {
  return <button type="button" class="quiet" id={`edit-${id}`} disabled={disabled} onClick={onEdit}>Edit</button>;
}

function MessageView({ message, edit, versions }: { message: Message; edit: ComponentChildren; versions: ComponentChildren }) {
  return (
    <article class="turn user" aria-label="You">
      <p class="who">You</p>
      {message.files.map((file, at) => <FileView key={at} file={file} />)}
      {message.text && <p class="said">{message.text}</p>}
      <div class="below">
        {versions}
        <CopyButton text={message.text} />
        {edit}
      </div>
    </article>
  );
}

function FileView({ file }: { file: AttachedFile }) {
  if (isPicture(file)) return <img class="attached" src={file.url} alt={file.name} title={file.name} />;
  return <details class="attached"><summary>{file.name}</summary><CodeBlock text={file.text} language={file.name.split(".").pop() ?? ""} /></details>;
}

interface EditorProps {
  turn: Turn;
  conversation: Conversation;
  model: string;
  /** Called with the id of the element that gets the focus. */
  onDone: (focused: string) => void;
}

function Editor({ turn, conversation, model, onDone }: EditorProps) {
  const [text, setText] = useState(turn.text);
  const area = useRef<HTMLTextAreaElement>(null);
  const possible = Boolean(text.trim() || (turn.role === "user" && turn.files.length));
  useLayoutEffect(() => area.current?.focus(), []);
  const cancel = () => onDone(`edit-${turn.id}`);
  const keep = () => {
    if (text !== turn.text) putTurn(conversation.id, turn.role === "user" ? { ...turn, text } : { ...turn, text, edited: true });
    cancel();
  };
  const send = (event: Event) => {
    event.preventDefault();
    if (turn.role !== "user") return keep();
    void sayAgain(conversation, turn, text, model);
    onDone(MESSAGE);
  };
  return (
    <form class={`turn editor ${turn.role === "user" ? "user" : "answer"}`} onSubmit={send} onKeyDown={(event) => event.key === "Escape" && cancel()}>
      <label class="who" for="edited">{turn.role === "user" ? "Your message" : `Answer from ${turn.model}`}</label>
      <textarea id="edited" ref={area} rows={Math.min(20, turn.text.split("\n").length + 2)} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <div class="row end">
        <button type="button" class="quiet" onClick={cancel}>Cancel</button>
        {turn.role === "user" && <button type="button" disabled={!possible} onClick={keep}>Save</button>}
        <button type="submit" class="primary" disabled={!possible || (turn.role === "user" && (!model || isRunning(conversation)))}>{turn.role === "user" ? "Send as a new version" : "Save"}</button>
      </div>
    </form>
  );
}
