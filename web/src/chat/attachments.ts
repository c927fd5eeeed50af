// Files that a message brings along: texts, and pictures, which are stored and sent as data URLs.

import { bytes } from "../measures";
import type { AttachedFile, PictureFile, TextFile } from "./tree";

const MOST_TEXT_BYTES = 1024 ** 2; // a quarter of a million tokens, more than most models read
const MOST_PICTURE_BYTES = 2 * 1024 ** 2; // a larger picture is scaled down
const LONGEST_SIDE = 2048; // pixels of a picture that is scaled down
const SENT_AS_THEY_ARE = ["image/gif", "image/jpeg", "image/png", "image/webp"];

/** Reads a text file or a picture. Raises an Error whose message says why it cannot be attached. */
export async function readAttached(file: File): Promise<AttachedFile> {
  if (file.size === 0) throw new Error(`${file.name} is empty.`);
  return isPictureType(file.type) ? readPicture(file, file.name) : readText(file);
}

/** True for the types of pictures made of pixels. */
export function isPictureType(type: string): boolean {
  return type.startsWith("image/") && type !== "image/svg+xml";
}

/** Reads a picture; a large one, or one of a rare type, becomes a JPEG. Raises an Error for the user. */
export async function readPicture(content: Blob, name: string): Promise<PictureFile> {
  let bitmap;
  try {
    bitmap = await createImageBitmap(content);
  } catch {
    throw new Error(`${name} is not a picture that this browser can read.`);
  }
  try {
    const unchanged = SENT_AS_THEY_ARE.includes(content.type) && content.size <= MOST_PICTURE_BYTES;
    return { name, url: await dataUrl(unchanged ? content : await scaled(bitmap)) };
  } finally {
    bitmap.close();
  }
}

async function readText(file: File): Promise<TextFile> {
  if (file.size > MOST_TEXT_BYTES) throw new Error(`${file.name} is ${bytes(file.size)}; the limit is ${bytes(MOST_TEXT_BYTES)}.`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch (error) {
    if (!(error instanceof TypeError)) throw new Error(`${file.name} cannot be read: ${(error as Error).message}`);
  }
  if (text === undefined || text.includes("\0")) throw new Error(`${file.name} is neither a picture nor a text file in UTF-8.`);
  return { name: file.name, text };
}

async function scaled(bitmap: ImageBitmap): Promise<Blob> {
  const factor = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * factor))) as [number, number];
  const context = new OffscreenCanvas(width, height).getContext("2d")!;
  context.fillStyle = "white"; // JPEG has no transparency
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  return context.canvas.convertToBlob({ type: "image/jpeg", quality: 0.9 });
}

function dataUrl(content: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(content);
  });
}
