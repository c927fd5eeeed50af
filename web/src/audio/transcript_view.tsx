// A transcript with its player: the current word is highlighted, and a click on a word jumps to it.

import { Fragment } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Modality } from "../../generated/allm/models/v1/model_pb";
import { CopyButton } from "../copy_button";
import { clock } from "../measures";
import { waitingFor } from "../models/waiting_for";
import { FailureNote, Unkept } from "../notes";
import { save } from "../saving";
import { plain, srt, vtt } from "./subtitles";
import { clear, measured, type Phrase, type Transcription } from "./transcription";

export function TranscriptView({ shown, onRetry }: { shown: Transcription; onRetry: (() => void) | null }) {
  const player = useRef<HTMLAudioElement>(null);
  const heard = useHeard(player, shown);
  const go = useCallback((to: number) => {
    if (!player.current) return;
    player.current.currentTime = to;
    player.current.play().catch(() => undefined); // it was stopped before it began
  }, []);
  return (
    <article class="card transcript" aria-busy={shown.state === "running" || shown.state === "listening"} aria-label="Transcript">
      <h2>{shown.name}</h2>
      <p class="hint" role="status">{about(shown)}</p>
      {shown.state === "running" && <progress aria-label="Transcription" />}
      {shown.source && <audio ref={player} controls src={shown.source} onLoadedMetadata={(event) => measured(event.currentTarget.duration)} aria-label={`Audio of ${shown.name}`} />}
      <div class="phrases">
        {shown.phrases.map((phrase, at) => (
          <PhraseView key={at} phrase={phrase} heard={heard?.phrase === at ? heard.word : -1} go={shown.source ? go : null} />
        ))}
        {shown.partial && <p class="partial" aria-live="polite"><span class="hidden">Partial text: </span>{shown.partial}</p>}
      </div>
      {shown.failure && <FailureNote failure={shown.failure} />}
      {shown.state === "done" && shown.phrases.length === 0 && <p class="note">The model found no speech in this recording.</p>}
      <Unkept />
      {(shown.state === "done" || shown.state === "failed") && (
        <div class="row">
          {shown.state === "failed" && onRetry && <button type="button" class="primary" onClick={onRetry}>Transcribe again</button>}
          {shown.phrases.length > 0 && <Files phrases={shown.phrases} name={shown.name.replace(/\.\w+$/, "") || "transcript"} />}
          <button type="button" class="quiet" onClick={() => void clear()}>Delete</button>
        </div>
      )}
    </article>
  );
}

function Files({ phrases, name }: { phrases: readonly Phrase[]; name: string }) {
  return (
    <>
      <CopyButton text={() => plain(phrases)} label="Copy text" />
      <button type="button" onClick={() => save(srt(phrases), `${name}.srt`, "application/x-subrip")}>Save as srt</button>
      <button type="button" onClick={() => save(vtt(phrases), `${name}.vtt`, "text/vtt")}>Save as vtt</button>
      <button type="button" onClick={() => save(plain(phrases), `${name}.txt`, "text/plain")}>Save as text</button>
    </>
  );
}

/** One phrase; `heard` is the number of the word that is being played, or -1. `go` plays from a position in seconds. */
function PhraseView({ phrase, heard, go }: { phrase: Phrase; heard: number; go: ((to: number) => void) | null }) {
  // Rendered only if the highlight moves: an hour of speech has ten thousand words.
  return useMemo(() => (
    <p class="phrase">
      <span class="time">{clock(phrase.start)}</span>{" "}
      {phrase.words.length && go
        ? phrase.words.map((word, at) => (
          <Fragment key={at}>
            {at > 0 && word.text.startsWith(" ") && " "}
            <button type="button" class={at === heard ? "word heard" : "word"} aria-current={at === heard ? "true" : undefined} onClick={() => go(word.start)}>{word.text.trim()}</button>
          </Fragment>
        ))
        : phrase.text.trim()}
    </p>
  ), [phrase, heard, go]);
}

/** The word at the player's position; null before the sound is played or moved, between words, and at the end. */
function useHeard(player: { current: HTMLAudioElement | null }, { source, phrases }: Transcription): { phrase: number; word: number } | null {
  const [place, setPlace] = useState("");
  useEffect(() => {
    setPlace("");
    const sound = player.current;
    if (!sound) return;
    let frame = 0;
    const look = () => {
      setPlace(sound.ended ? "" : placeAt(phrases, sound.currentTime));
      cancelAnimationFrame(frame);
      if (!sound.paused && !sound.ended) frame = requestAnimationFrame(look);
    };
    for (const event of EVENTS) sound.addEventListener(event, look);
    return () => {
      cancelAnimationFrame(frame);
      for (const event of EVENTS) sound.removeEventListener(event, look);
    };
  }, [source, phrases]);
  const before = useRef<Element | null>(null);
  useEffect(() => {
    const word = document.querySelector(".phrase .heard");
    // A user who has scrolled away from the last word is reading elsewhere.
    if (word && !player.current?.paused && (!before.current || visible(before.current))) word.scrollIntoView({ block: "nearest" });
    before.current = word;
  }, [place]);
  if (!place) return null;
  const [phrase, word] = place.split(":").map(Number);
  return { phrase: phrase!, word: word! };
}

const EVENTS = ["play", "seeked", "pause", "ended"];

/** The numbers of the phrase and the word at a position in seconds, such as `3:0`; empty if it has no word. */
function placeAt(phrases: readonly Phrase[], now: number): string {
  const at = phrases.findLastIndex((phrase) => phrase.words.length > 0 && phrase.words[0]!.start <= now);
  const words = phrases[at]?.words ?? [];
  const word = words.findLastIndex((each) => each.start <= now);
  if (word < 0 || (word === words.length - 1 && now >= words[word]!.end)) return "";
  return `${at}:${word}`;
}

function visible(element: Element): boolean {
  const { top, bottom } = element.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}

const STATES = { listening: "Recording", done: "Transcribed", failed: "Incomplete" };

function about(shown: Transcription): string {
  const parts = [
    shown.state === "running" ? waitingFor(Modality.AUDIO, shown.model) || "Transcribing the whole file…" : STATES[shown.state],
    shown.duration !== null ? `${clock(shown.duration)} of audio` : "",
    shown.language ? `language ${shown.language}` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}
