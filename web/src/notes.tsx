// Short notes for the user: failures and empty views.

import type { ComponentChildren } from "preact";
import { unkept } from "./database";
import type { Failure } from "./failure";

/** A failure as a sentence, with the request ID to search the log for. */
export function FailureNote({ failure }: { failure: Pick<Failure, "kind" | "sentence" | "requestId"> }) {
  if (failure.kind === "stopped") return <p class="note">Stopped.</p>;
  return (
    <div class="note bad" role="alert">
      <p>{failure.sentence}</p>
      {failure.requestId && <p class="hint">Request ID <code>{failure.requestId}</code></p>}
    </div>
  );
}

/** Why this browser does not keep what the view shows. */
export function Unkept() {
  return unkept.value && <p class="note bad" role="alert">{unkept.value}</p>;
}

/** The text of a view without content. */
export function Empty({ title, children }: { title: string; children: ComponentChildren }) {
  return <div class="empty"><h2>{title}</h2>{children}</div>;
}
