// The form for the next message: its text, its files, and whether it can be sent.

import { useRef, useState } from "preact/hooks";
import type { Model } from "../../generated/allm/models/v1/model_pb";
import { SubmitOrStop } from "../fields";
import { bytes } from "../measures";
import { say, stop } from "./answering";
import { readText } from "./attachments";
import { draft, tooLong } from "./draft";
import { MESSAGE } from "./focus";
import { isWrong, settings } from "./settings";
import { isRunning, pathTo, type Conversation, type TextFile } from "./tree";

const ATTACH = "attach";

export function Composer({ conversation, model }: { conversation: Conversation | null; model: Model | undefined }) {
  const [refused, setRefused] = useState("");
  const [over, setOver] = useState(false);
  const { text, files } = draft.value;
  const running = isRunning(conversation);
  const wrong = isWrong(settings.value);
  const possible = Boolean(model && (text.trim() || files.length) && !running && !wrong);
  const send = () => {
    if (!possible) return;
    draft.value = { text: "", files: [] };
    setRefused("");
    void say(conversation, text, files, model!.id);
  };
  const attach = async (chosen: Iterable<File>) => {
    const read = await Promise.allSettled([...chosen].map(readText));
    const good = read.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []));
    draft.value = { ...draft.peek(), files: [...draft.peek().files, ...good] };
    setRefused(read.flatMap((each) => (each.status === "rejected" ? [(each.reason as Error).message] : [])).join(" "));
  };
  const detach = (at: number) => {
    draft.value = { ...draft.value, files: files.filter((_, place) => place !== at) };
    document.getElementById(ATTACH)?.focus(); // the button goes
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape" && running) stop(conversation!.id);
  };
  const path = conversation ? pathTo(conversation, conversation.leaf) : [];
  const warning = wrong ? "The settings contain an error." : refused || (model && (text || files.length) ? tooLong(model, path) : "");
  return (
    <form class={over ? "composer over" : "composer"} onSubmit={(event) => { event.preventDefault(); send(); }}
      onDragOver={(event) => { event.preventDefault(); setOver(true); }} onDragLeave={() => setOver(false)}
      onDrop={(event) => { event.preventDefault(); setOver(false); void attach(event.dataTransfer?.files ?? []); }}>
      <label for={MESSAGE} class="hidden">Message</label>
      <textarea id={MESSAGE} rows={2} value={text} placeholder="Message" onKeyDown={onKeyDown} aria-describedby="message-hint"
        onInput={(event) => (draft.value = { ...draft.value, text: event.currentTarget.value })} />
      <Files files={files} onRemove={detach} />
      <div class="row end">
        <span class={warning ? "problem" : "hint"} id="message-hint" aria-live="polite">{warning || "Press Enter to send, Shift+Enter for a new line"}</span>
        <AttachButton onFiles={(chosen) => void attach(chosen)} />
        <SubmitOrStop busy={running} possible={possible} onStop={() => stop(conversation!.id)}>Send</SubmitOrStop>
      </div>
    </form>
  );
}

function AttachButton({ onFiles }: { onFiles: (files: File[]) => void }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <button type="button" id={ATTACH} onClick={() => input.current?.click()}>Attach text files</button>
      <input ref={input} type="file" multiple hidden aria-label="Text files"
        onChange={(event) => { onFiles([...(event.currentTarget.files ?? [])]); event.currentTarget.value = ""; }} />
    </>
  );
}

function Files({ files, onRemove }: { files: TextFile[]; onRemove: (at: number) => void }) {
  if (!files.length) return null;
  return (
    <ul class="files" aria-label="Attached files">
      {files.map((file, at) => (
        <li key={at}>{file.name} <span class="hint">{bytes(new Blob([file.text]).size)}</span>
          <button type="button" class="quiet" aria-label={`Remove ${file.name}`} onClick={() => onRemove(at)}>×</button></li>
      ))}
    </ul>
  );
}
