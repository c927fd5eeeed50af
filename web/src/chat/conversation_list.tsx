// The conversations of this browser: to open, search, rename, export, import and delete.

import { signal } from "@preact/signals";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { stop } from "./answering";
import { addressOf, change, conversations, loaded, openId, remove } from "./conversations";
import { exportJson, exportMarkdown, importFile } from "./exchange";
import { focusMessage } from "./focus";
import { DeleteButton } from "../sure";
import { found, isRunning, type Conversation } from "./tree";

const DAY = 24 * 3600 * 1000;
const search = signal("");

export function ConversationList() {
  const id = useId();
  const all = [...conversations.value.values()].sort((one, other) => other.at - one.at);
  const shown = all.flatMap((each) => {
    const around = found(each, search.value);
    return around === null ? [] : [{ each, around }];
  });
  const groups = new Map<string, typeof shown>();
  for (const entry of shown) groups.set(ageOf(entry.each.at), [...(groups.get(ageOf(entry.each.at)) ?? []), entry]);
  return (
    <nav class="conversations" aria-label="Conversations">
      <a class="button" href={addressOf()} onClick={() => focusMessage()}>New conversation</a>
      {all.length > 0 && (
        <div class="field">
          <label for={id} class="hidden">Search conversations</label>
          <input id={id} type="search" value={search.value} placeholder="Search" onInput={(event) => (search.value = event.currentTarget.value)} />
        </div>
      )}
      {[...groups].map(([age, entries]) => (
        <section key={age} aria-label={age}>
          <p class="who">{age}</p>
          <ul>{entries.map(({ each, around }) => <Entry key={each.id} conversation={each} around={around} />)}</ul>
        </section>
      ))}
      {loaded.value && !shown.length && (
        <p class="hint" role="status">{all.length ? "No conversation contains these words." : "Conversations are kept in this browser, and appear here."}</p>
      )}
      <Exchange all={all} />
    </nav>
  );
}

function ageOf(at: number): string {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (at >= midnight) return "Today";
  if (at >= midnight - DAY) return "Yesterday";
  if (at >= midnight - 7 * DAY) return "Previous 7 days";
  return "Older";
}

function Entry({ conversation, around }: { conversation: Conversation; around: string }) {
  const [state, setState] = useState<"" | "menu" | "name">("");
  const toggle = useRef<HTMLButtonElement>(null);
  const { id, title } = conversation;
  const close = () => {
    setState("");
    toggle.current?.focus();
  };
  const drop = () => {
    toggle.current?.closest("nav")?.querySelector("a")?.focus(); // this entry goes
    stop(id);
    remove(id);
  };
  return (
    <li>
      <div class="entry">
        <a href={addressOf(id)} aria-current={id === openId.value ? "page" : undefined}>
          <span class="title">{title}</span>
          {search.value && around && <span class="hint">{around}</span>}
          {isRunning(conversation) && <span class="hint">Answering…</span>}
        </a>
        <button type="button" ref={toggle} class="quiet" aria-expanded={state !== ""} aria-label={`Actions for ${title}`}
          onClick={() => setState(state ? "" : "menu")}>⋯</button>
      </div>
      {state === "menu" && (
        <div class="row">
          <button type="button" class="quiet" onClick={() => setState("name")}>Rename</button>
          <button type="button" class="quiet" onClick={() => exportJson([conversation])}>Export as JSON</button>
          <button type="button" class="quiet" onClick={() => exportMarkdown(conversation)}>Export as Markdown</button>
          <DeleteButton question="Delete this conversation?" onDelete={drop}>Delete<span class="hidden"> {title}</span></DeleteButton>
        </div>
      )}
      {state === "name" && <NameForm conversation={conversation} onDone={close} />}
    </li>
  );
}

function NameForm({ conversation, onDone }: { conversation: Conversation; onDone: () => void }) {
  const [title, setTitle] = useState(conversation.title);
  const input = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => {
    input.current?.focus();
    input.current?.select();
  }, []);
  const submit = (event: Event) => {
    event.preventDefault();
    if (title.trim()) change(conversation.id, (before) => ({ ...before, title: title.trim() }));
    onDone();
  };
  return (
    <form class="row" onSubmit={submit} onKeyDown={(event) => event.key === "Escape" && onDone()}>
      <input ref={input} aria-label="Title" value={title} onInput={(event) => setTitle(event.currentTarget.value)} />
      <button type="submit" disabled={!title.trim()}>Save</button>
      <button type="button" class="quiet" onClick={onDone}>Cancel</button>
    </form>
  );
}

function Exchange({ all }: { all: Conversation[] }) {
  const input = useRef<HTMLInputElement>(null);
  const [said, say] = useState({ text: "", bad: false });
  const take = async (file: File | undefined) => {
    if (!file) return;
    try {
      const count = await importFile(file);
      say({ text: `${count} ${count === 1 ? "conversation" : "conversations"} imported.`, bad: false });
    } catch (error) {
      say({ text: (error as Error).message, bad: true });
    }
  };
  return (
    <>
      <div class="row">
        <button type="button" class="quiet" onClick={() => input.current?.click()}>Import</button>
        {all.length > 0 && <button type="button" class="quiet" onClick={() => exportJson(all)}>Export all</button>}
        <input ref={input} type="file" accept=".json,application/json" hidden aria-label="File with conversations"
          onChange={(event) => { void take(event.currentTarget.files?.[0]); event.currentTarget.value = ""; }} />
      </div>
      <p role="status" class={said.bad ? "problem" : "hint"}>{said.text}</p>
    </>
  );
}
