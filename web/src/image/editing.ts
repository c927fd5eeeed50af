// The image to edit and its mask, which the browser keeps over a reload.

import { batch, signal } from "@preact/signals";
import { store, type Kept } from "../database";

interface Draft extends Kept {
  content: Blob;
  mask: Blob | null;
}

const ID = "edit";
const drafts = store<Draft>("drafts");

/** The image to edit, with the URL that shows it; null to generate one from text only. */
export const base = signal<{ source: string; content: Blob } | null>(null);
/** The mask: transparent where the image is redrawn; null to redraw all of it. */
export const mask = signal<Blob | null>(null);

/** Sets the image to edit, without a mask; null for none. */
export function setBase(content: Blob | null): void {
  show(content, null);
  if (content) keep();
  else drafts.remove(ID).catch(() => undefined); // `unkept` has the reason
}

/** Sets the mask of the image. */
export function setMask(painted: Blob | null): void {
  mask.value = painted;
  keep();
}

function keep(): void {
  if (base.value) drafts.put({ id: ID, at: Date.now(), content: base.value.content, mask: mask.value }).catch(() => undefined);
}

function show(content: Blob | null, painted: Blob | null): void {
  if (base.value) URL.revokeObjectURL(base.value.source);
  batch(() => {
    mask.value = painted;
    base.value = content && { source: URL.createObjectURL(content), content };
  });
}

async function restore(): Promise<void> {
  const draft = await drafts.get(ID);
  if (draft && !base.value) show(draft.content, draft.mask);
}
void restore().catch(() => undefined);
