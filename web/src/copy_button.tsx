// A button that copies a text and reports the result.

import { useState } from "preact/hooks";

export function CopyButton({ text, label = "Copy" }: { text: string | (() => string); label?: string }) {
  const [said, say] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "string" ? text : text());
      say("Copied");
    } catch {
      say("Copying failed: select the text instead");
    }
    setTimeout(() => say(""), 2000);
  };
  return <button type="button" class="quiet copy" onClick={copy}><span aria-live="polite">{said || label}</span></button>;
}
