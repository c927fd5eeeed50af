// A transcript with its player: the current word is highlighted, and a click on a word jumps to it.

import { Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { CopyButton } from "../copy_button";
import { clock } from "../measures";
import { FailureNote } from "../notes";
import { save } from "../saving";
import { plain, srt, vtt } from "./subtitles";
import type { Phrase, Transcription } from "./transcription";

export function TranscriptView({ shown }: { shown: Transcription }) {
  const player = useRef<HTMLAudioElement>(null);
  const now = useTime(player, shown.source);
  const go = (to: number) => {
    if (!player.current) return;
    player.current.currentTime = to;
    player.current.play().catch(() => undefined); // it was stopped before it began
  };
  const name = shown.name.replace(/\.\w+$/, "") || "transcript";
  return (
    <article class="card transcript" aria-busy={shown.state === "running" || shown.state === "listening"} aria-label="Transcript">
      <h2>{shown.name}</h2>
      <p class="hint" role="status">{about(shown)}</p>
      {shown.source && <audio ref={player} controls src={shown.source} aria-label={`Audio of ${shown.name}`} />}
      <div class="phrases">
        {shown.phrases.map((phrase, at) => <PhraseView key={at} phrase={phrase} now={now} go={go} playable={Boolean(shown.source)} />)}
        {shown.partial && <p class="partial" aria-live="polite"><span class="hidden">Partial text: </span>{shown.partial}</p>}
      </div>
      {shown.failure && <FailureNote failure={shown.failure} />}
      {shown.state === "done" && shown.phrases.length === 0 && <p class="note">The model found no speech in this recording.</p>}
      {shown.phrases.length > 0 && shown.state !== "running" && (
        <div class="row">
          <CopyButton text={() => plain(shown.phrases)} label="Copy text" />
          <button type="button" onClick={() => save(srt(shown.phrases), `${name}.srt`, "application/x-subrip")}>Save as srt</button>
          <button type="button" onClick={() => save(vtt(shown.phrases), `${name}.vtt`, "text/vtt")}>Save as vtt</button>
          <button type="button" onClick={() => save(plain(shown.phrases), `${name}.txt`, "text/plain")}>Save as text</button>
        </div>
      )}
    </article>
  );
}

function PhraseView({ phrase, now, go, playable }: { phrase: Phrase; now: number | null; go: (to: number) => void; playable: boolean }) {
  return (
    <p class="phrase">
      <span class="time">{clock(phrase.start)}</span>
      <span>
        {phrase.words.length && playable
          ? phrase.words.map((word, at) => {
            const heard = now !== null && now >= word.start && now < (phrase.words[at + 1]?.start ?? word.end);
            return (
              <Fragment key={at}>
                {word.text.startsWith(" ") && " "}
                <button type="button" class={heard ? "word heard" : "word"} aria-current={heard ? "true" : undefined} onClick={() => go(word.start)}>{word.text.trim()}</button>
              </Fragment>
            );
          })
          : phrase.text.trim()}
      </span>
    </p>
  );
}

/** The player's position in seconds; null before it is played or moved, and at the end. */
function useTime(player: { current: HTMLAudioElement | null }, source: string): number | null {
  const [now, setNow] = useState<number | null>(null);
  useEffect(() => {
    setNow(null);
    const sound = player.current;
    if (!sound) return;
    let frame = 0;
    const look = () => {
      setNow(sound.ended ? null : sound.currentTime);
      if (!sound.paused && !sound.ended) frame = requestAnimationFrame(look);
    };
    for (const event of ["play", "seeked", "pause", "ended"]) sound.addEventListener(event, look);
    return () => {
      cancelAnimationFrame(frame);
      for (const event of ["play", "seeked", "pause", "ended"]) sound.removeEventListener(event, look);
    };
  }, [source]);
  return now;
}

function about(shown: Transcription): string {
  const parts = [
    { listening: "Recording", running: "Transcribing", done: "Transcribed", failed: "Incomplete" }[shown.state],
    shown.duration !== null ? `${clock(shown.duration)} of audio` : "",
    shown.language ? `language ${shown.language}` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}
