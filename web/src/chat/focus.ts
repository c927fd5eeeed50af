// The field for the next message, as the place where somebody goes on.

export const MESSAGE = "message";

/** Focuses the field, except on a phone, whose keyboard would cover half of the page. */
export function focusMessage(): void {
  if (matchMedia("(hover: hover)").matches) document.getElementById(MESSAGE)?.focus();
}
