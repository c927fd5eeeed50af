// Asks for an API key where the server wants one.

import { useEffect, useRef, useState } from "preact/hooks";
import { keyWanted, useKey } from "./key";

/** A dialog that is open while a key is wanted. */
export function KeyDialog() {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const why = keyWanted.value;
  useEffect(() => {
    if (why !== null && !dialog.current?.open) dialog.current?.showModal();
    if (why === null) dialog.current?.close();
  }, [why]);
  const submit = (event: Event) => {
    event.preventDefault();
    if (!text.trim()) return;
    useKey(text.trim());
    setText("");
  };
  // Not by the dialog's own event of being closed, which may come when it is wanted again.
  const notNow = () => (keyWanted.value = null);
  return (
    <dialog ref={dialog} aria-labelledby="key-title" onCancel={notNow}>
      <form onSubmit={submit}>
        <h2 id="key-title">This server asks for an API key</h2>
        <p>{why}</p>
        <label class="field">
          <span>API key</span>
          <input type="password" autocomplete="off" spellcheck={false} value={text} placeholder="sk-allm-…"
            onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <p class="hint">It stays in this tab, and is gone when you close it. Whoever runs the server makes one with
          {" "}<code>allm keys create NAME</code>.</p>
        <div class="row end">
          <button type="button" onClick={notNow}>Not now</button>
          <button type="submit" class="primary" disabled={!text.trim()}>Use this key</button>
        </div>
      </form>
    </dialog>
  );
}
