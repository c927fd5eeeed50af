// Whether a text is a transcript of what was said. Models hear a word wrong now and then, and write numbers and
// punctuation as they like: most words will do.
const ENOUGH = 0.8;
const words = (text) => text.toLowerCase().match(/[a-z]+/g) ?? [];

export function heard(said, text) {
  const found = new Set(words(text));
  const wanted = words(said);
  return wanted.filter((word) => found.has(word)).length >= ENOUGH * wanted.length;
}
