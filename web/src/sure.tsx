// A button that asks before it deletes.

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

interface Props {
  /** What the button says, such as `Delete` and a hidden name. */
  children: ComponentChildren;
  question: string;
  disabled?: boolean;
  onDelete: () => void;
}

export function DeleteButton({ children, question, disabled = false, onDelete }: Props) {
  const [asked, ask] = useState<boolean | null>(null); // null before the first question, which leaves the focus alone
  const next = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => {
    if (asked !== null) next.current?.focus(); // the focused button has gone
  }, [asked]);
  if (!asked) return <button type="button" ref={next} class="quiet" disabled={disabled} onClick={() => ask(true)}>{children}</button>;
  const remove = () => {
    ask(false);
    onDelete();
  };
  return (
    <span class="sure" role="alert">{question}
      <button type="button" class="danger" onClick={remove}>{children}</button>
      <button type="button" class="quiet" ref={next} onClick={() => ask(false)}>Cancel</button>
    </span>
  );
}
