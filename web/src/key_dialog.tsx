// Asks for an API key if the server requires one.

import { useEffect, useRef, useState } from "preact/hooks";
import { keyWanted, useKey } from "./key";

/** A dialog that is open while a key is required. */
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
  // Not in the dialog's `close` event, which may arrive after the key is required again.
  const notNow = () => (keyWanted.value = null);
  return (
    <dialog ref={dialog} aria-labelledby="key-title" onCancel={notNow}>
      <form onSubmit={submit}>
        <h2 id="key-title">This server requires an API key</h2>
        <p>{why}</p>
        <label class="field">
          <span>API key</span>
          <input type="password" autocomplete="off" spellcheck={false} value={text} placeholder="sk-allm-…"
            onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <p class="hint">The key is stored in this tab only, until you close it. The operator of the server creates keys with
          {" "}<code>allm keys create NAME</code>.</p>
        <div class="row end">
          <button type="button" onClick={notNow}>Cancel</button>
          <button type="submit" class="primary" disabled={!text.trim()}>Use this key</button>
        </div>
      </form>
    </dialog>
  );
}
