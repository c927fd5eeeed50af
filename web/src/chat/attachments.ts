// Text files that a message brings along.

import { bytes } from "../measures";
import type { TextFile } from "./tree";

const MOST_BYTES = 1024 ** 2; // a quarter of a million tokens, more than most models read

/** Reads a text file. Raises an Error whose message says why it cannot be attached. */
export async function readText(file: File): Promise<TextFile> {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} is ${bytes(file.size)}; the limit is ${bytes(MOST_BYTES)}.`);
  if (file.size === 0) throw new Error(`${file.name} is empty.`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch (error) {
    if (!(error instanceof TypeError)) throw new Error(`${file.name} cannot be read: ${(error as Error).message}`);
  }
  if (text === undefined || text.includes("\0")) throw new Error(`${file.name} is not a text file in UTF-8.`);
  return { name: file.name, text };
}
