// The images that this browser keeps, within a limit.

import { computed, signal } from "@preact/signals";
import { newId, store, type Kept } from "../database";

/** A finished image, as the browser keeps it. */
export interface Picture extends Kept {
  content: Blob;
  prompt: string;
  negative: string;
  model: string;
  width: number;
  height: number;
  seed: bigint;
  steps: number;
}

/** An image with the URL that shows it. */
export type ShownPicture = Picture & { source: string };

/** Limits; beyond them the oldest images are deleted. */
export const MOST_IMAGES = 500;
export const MOST_BYTES = 256 * 1024 * 1024;

const records = store<Picture>("pictures");

/** All images, the newest first. */
export const gallery = signal<readonly ShownPicture[]>([]);
/** Bytes of all images. */
export const keptBytes = computed(() => gallery.value.reduce((sum, each) => sum + each.content.size, 0));

// Images that only this tab has: not written yet, or refused by the browser.
const unsaved = new Set<string>();

/** Adds a new image, and deletes the oldest ones beyond the limits. */
export function add(picture: Omit<Picture, keyof Kept>): void {
  const record = { ...picture, id: newId(), at: Date.now() };
  gallery.value = [shown(record), ...gallery.value];
  let bytes = 0;
  const within = (each: Picture, at: number) => at === 0 || (at < MOST_IMAGES && bytes + each.content.size <= MOST_BYTES);
  const last = gallery.value.findIndex((each, at) => {
    if (!within(each, at)) return true;
    bytes += each.content.size;
    return false;
  });
  if (last > 0) for (const each of gallery.value.slice(last)) void remove(each.id);
  unsaved.add(record.id);
  records.put(record).then(() => unsaved.delete(record.id), () => undefined); // `unkept` has the reason
}

/** Deletes an image. */
export async function remove(id: string): Promise<void> {
  await records.remove(id).catch(() => undefined);
  drop(id);
}

/** Deletes all images. */
export async function removeAll(): Promise<void> {
  await records.clear().catch(() => undefined);
  for (const { id } of gallery.value) drop(id);
}

function shown(record: Picture): ShownPicture {
  return { ...record, source: URL.createObjectURL(record.content) };
}

function drop(id: string): void {
  const dropped = gallery.value.find((each) => each.id === id);
  if (dropped) URL.revokeObjectURL(dropped.source);
  gallery.value = gallery.value.filter((each) => each.id !== id);
}

/** Shows what is stored: at the start, and after another tab has changed it. */
async function restore(): Promise<void> {
  const stored = (await records.all()).reverse();
  const ids = new Set(stored.map((each) => each.id));
  for (const { id } of gallery.value) if (!ids.has(id) && !unsaved.has(id)) drop(id);
  const known = new Map(gallery.value.map((each) => [each.id, each]));
  const added = gallery.value.filter((each) => !ids.has(each.id));
  gallery.value = [...added, ...stored.map((each) => known.get(each.id) ?? shown(each))];
}

const read = () => void restore().catch(() => undefined);
records.onChange(read);
read();
