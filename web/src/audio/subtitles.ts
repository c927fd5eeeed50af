// Transcripts as subtitle files.

import type { Phrase } from "./transcription";

export function srt(phrases: readonly Phrase[]): string {
  return phrases.map((phrase, at) => `${at + 1}\n${stamp(phrase.start, ",")} --> ${stamp(phrase.end, ",")}\n${phrase.text.trim()}\n`).join("\n");
}

export function vtt(phrases: readonly Phrase[]): string {
  const cues = phrases.map((phrase) => `${stamp(phrase.start, ".")} --> ${stamp(phrase.end, ".")}\n${escaped(phrase.text.trim())}\n`);
  return `WEBVTT\n\n${cues.join("\n")}`;
}

export function plain(phrases: readonly Phrase[]): string {
  return phrases.map((phrase) => phrase.text).join("").trim() + "\n";
}

function stamp(seconds: number, point: string): string {
  const whole = Math.round(seconds * 1000);
  const part = (value: number, digits: number) => String(Math.floor(value)).padStart(digits, "0");
  return `${part(whole / 3_600_000, 2)}:${part((whole / 60_000) % 60, 2)}:${part((whole / 1000) % 60, 2)}${point}${part(whole % 1000, 3)}`;
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("-->", "--&gt;");
}
