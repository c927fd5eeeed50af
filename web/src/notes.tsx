// Short notes to whoever looks on: what failed, and what is empty.

import type { ComponentChildren } from "preact";
import type { Failure } from "./failure";

/** A failure as a sentence, with what the log is searched by. */
export function FailureNote({ failure }: { failure: Failure }) {
  if (failure.kind === "stopped") return <p class="note">Stopped.</p>;
  return (
    <div class="note bad" role="alert">
      <p>{failure.sentence}</p>
      {failure.requestId && <p class="hint">Request <code>{failure.requestId}</code></p>}
    </div>
  );
}

/** What a place says that holds nothing yet. */
export function Empty({ title, children }: { title: string; children: ComponentChildren }) {
  return <div class="empty"><h2>{title}</h2>{children}</div>;
}
