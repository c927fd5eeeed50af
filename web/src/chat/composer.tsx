// The form for the next message: its text, its files, and whether it can be sent.

import { useRef, useState } from "preact/hooks";
import { Modality, type Model } from "../../generated/allm/models/v1/model_pb";
import { having, serves } from "../catalog";
import { SubmitOrStop } from "../fields";
import { bytes } from "../measures";
import { say, stop } from "./answering";
import { isPictureType, readAttached } from "./attachments";
import { draft, tooLong } from "./draft";
import { MESSAGE } from "./focus";
import { isWrong, settings } from "./settings";
import { filesOf, isPicture, isRunning, pathTo, type AttachedFile, type Conversation, type Turn } from "./tree";

const ATTACH = "attach";

export function Composer({ conversation, model }: { conversation: Conversation | null; model: Model | undefined }) {
  const [refused, setRefused] = useState("");
  const [over, setOver] = useState(false);
  const [reading, setReading] = useState(0); // files, which the message would lack
  const { text, files } = draft.value;
  const running = isRunning(conversation);
  const path = conversation ? pathTo(conversation, conversation.leaf) : [];
  const blind = model ? unseen(model, path, files) : "";
  const wrong = isWrong(settings.value) ? "The settings contain an error." : blind;
  const possible = Boolean(model && (text.trim() || files.length) && !running && !wrong && !reading);
  const send = () => {
    if (!possible) return;
    draft.value = { text: "", files: [] };
    setRefused("");
    void say(conversation, text, files, model!.id);
  };
  const attach = async (chosen: Iterable<File>) => {
    const all = [...chosen];
    setReading((before) => before + all.length);
    const read = await Promise.allSettled(all.map(readAttached));
    setReading((before) => before - all.length);
    const good = read.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []));
    draft.value = { ...draft.peek(), files: [...draft.peek().files, ...good] };
    setRefused(read.flatMap((each) => (each.status === "rejected" ? [(each.reason as Error).message] : [])).join(" "));
  };
  const detach = (at: number) => {
    draft.value = { ...draft.value, files: files.filter((_, place) => place !== at) };
    document.getElementById(ATTACH)?.focus(); // the button goes
  };
  const onPaste = (event: ClipboardEvent) => {
    const { files: pasted, types } = event.clipboardData!;
    // Office programs add a picture of the text.
    const pictures = types.includes("text/plain") && types.includes("text/html") ? [] : [...pasted].filter(({ type }) => isPictureType(type));
    if (!pictures.length) return;
    event.preventDefault();
    void attach(pictures);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape" && running) stop(conversation!.id);
  };
  const warning = wrong || refused || (model && (text || files.length) ? tooLong(model, path) : "");
  return (
    <form class={over ? "composer over" : "composer"} onSubmit={(event) => { event.preventDefault(); send(); }}
      onDragOver={(event) => { event.preventDefault(); setOver(true); }} onDragLeave={() => setOver(false)}
      onDrop={(event) => { event.preventDefault(); setOver(false); void attach(event.dataTransfer?.files ?? []); }} onPaste={onPaste}>
      <label for={MESSAGE} class="hidden">Message</label>
      <textarea id={MESSAGE} rows={2} value={text} placeholder="Message" onKeyDown={onKeyDown} aria-describedby="message-hint"
        onInput={(event) => (draft.value = { ...draft.value, text: event.currentTarget.value })} />
      <Files files={files} onRemove={detach} />
      <div class="row end">
        <span class={warning ? "problem" : "hint"} id="message-hint" aria-live="polite">{warning || (reading ? "Reading the files…" : "Press Enter to send, Shift+Enter for a new line")}</span>
        <AttachButton onFiles={(chosen) => void attach(chosen)} />
        <SubmitOrStop busy={running} possible={possible} onStop={() => stop(conversation!.id)}>Send</SubmitOrStop>
      </div>
    </form>
  );
}

/** Why the model cannot see the pictures of the path and the draft; empty if it can, or if there are none. */
function unseen(model: Model, path: readonly Turn[], files: readonly AttachedFile[]): string {
  const all = [...files, ...filesOf(path)];
  if (model.capabilities.includes("vision") || !all.some(isPicture)) return "";
  const able = having("vision", Modality.TEXT).filter(serves).map(({ id }) => id);
  return `${model.id} takes no pictures. ${able.length ? `Choose a model that does: ${able.join(", ")}.` : "No model that does is ready."}`;
}

function AttachButton({ onFiles }: { onFiles: (files: File[]) => void }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <button type="button" id={ATTACH} onClick={() => input.current?.click()}>Attach text or pictures</button>
      <input ref={input} type="file" multiple hidden aria-label="Files"
        onChange={(event) => { onFiles([...(event.currentTarget.files ?? [])]); event.currentTarget.value = ""; }} />
    </>
  );
}

function Files({ files, onRemove }: { files: AttachedFile[]; onRemove: (at: number) => void }) {
  if (!files.length) return null;
  return (
    <ul class="files" aria-label="Attached files">
      {files.map((file, at) => (
        <li key={at}>{isPicture(file) && <img src={file.url} alt="" />}{file.name} {!isPicture(file) && <span class="hint">{bytes(new Blob([file.text]).size)}</span>}
          <button type="button" class="quiet" aria-label={`Remove ${file.name}`} onClick={() => onRemove(at)}>×</button></li>
      ))}
    </ul>
  );
}
