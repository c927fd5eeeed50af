"""The computations of the batch loop's steps (encode, decode, judge and align windows, and decode partials), and the
lanes that run them: one at a time in the loop's thread, or several in parallel threads.

No two steps share a row, and the loop leaves the rows of a step alone until it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from services.audio.engine.decoding_quality import Attempt, judged
from services.audio.engine.mel import SpectrogramChunk
from services.audio.engine.messages import PartialText
from services.audio.engine.outcome import Outcome, cut, text_tokens
from services.audio.engine.running_transcript import Row, RunningTranscript, columns_for
from services.audio.engine.runtime import Aligned, Decoded, Encoded, Runtime, Step
from services.worker.messages import EngineError

# Columns: if a window's text ends at least this far before its sound, the model has stopped in the middle of it.
SHORTEST_REST = 100

T = TypeVar("T")


@dataclass(slots=True)
class Computed(Generic[T]):
    """Results for rows, and the rows that failed."""

    results: list[tuple[Row, T]] = field(default_factory=list)
    refused: list[tuple[Row, EngineError]] = field(default_factory=list)
    too_many: int = 0  # rows that exceeded the memory together; 0: none did

    def note(self, other: Computed[Any]) -> None:
        """Adds the refusals of another computation, and its lack of memory."""
        self.refused += other.refused
        self.too_many = self.too_many or other.too_many


@dataclass(slots=True)
class Tried(Computed[Outcome]):
    """The outcomes of decoded rows."""

    failed: list[Row] = field(default_factory=list)  # to be tried again; those without a window are encoded first
    seconds: float = 0.0  # duration of decoding


def guarded(rows: Sequence[Row], compute: Callable[[Sequence[Row]], Sequence[T]]) -> Computed[T]:
    """Computes something for each row. If that fails for all together, each row is tried alone."""
    if not rows:
        return Computed()
    try:
        return Computed(list(zip(rows, compute(rows), strict=True)))
    except EngineError as error:
        if len(rows) == 1:
            return Computed(refused=[(rows[0], error)])
        found: Computed[T] = Computed(too_many=len(rows) if error.code == "OUT_OF_MEMORY" else 0)
    for row in rows:
        alone = guarded([row], compute)
        found.results += alone.results
        found.refused += alone.refused
    return found


class Steps:
    """The computation of steps with a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def encode(self, rows: Sequence[Row]) -> Computed[Encoded]:
        """Returns handles of the rows' windows; encodes those of equal length together."""
        found: Computed[Encoded] = Computed()
        for columns in sorted({row.columns for row in rows}):
            same = [row for row in rows if row.columns == columns]
            encoded = guarded(same, lambda some: self._runtime.encode(np.stack([row.mel for row in some])))
            found.results += encoded.results
            found.note(encoded)
        return found

    def detect(self, windows: Sequence[tuple[Row, Encoded]]) -> Computed[tuple[str, float]]:
        """Returns the language of each window and its probability."""
        of = dict(windows)
        return guarded([row for row, _ in windows], lambda some: self._runtime.detect([of[row] for row in some]))

    def decode(self, rows: Sequence[Row]) -> Tried:
        """Decodes rows of one kind, judges the results, and aligns the good ones if requested."""
        started = time.monotonic()
        decoded = guarded(rows, self._decoded)
        tried = Tried(seconds=time.monotonic() - started)
        tried.note(decoded)
        outcomes: dict[Row, Outcome] = {}
        for row, result in decoded.results:
            attempt = judged(result, row.temperature, self._runtime.vocabulary)
            if not attempt.failed:
                outcomes[row] = self._outcome(row, attempt)
            elif row.failed_again(attempt):
                tried.failed.append(row)
            else:
                outcomes[row] = self._outcome(row, row.best())
        tried.results = self._align(outcomes, tried)
        return tried

    def _decoded(self, rows: Sequence[Row]) -> list[Decoded]:
        context = self._runtime.context_tokens
        longest = max(len(row.prompt) for row in rows)
        step = rows[0].step(min(context // 2, context - longest))
        return self._runtime.decode([row.window for row in rows], [row.prompt for row in rows], step)

    def _outcome(self, row: Row, attempt: Attempt) -> Outcome:
        independent, frames = not row.transcript.sequential, row.chunk.frames
        begin = self._runtime.vocabulary.timestamp_begin
        pieces = None if attempt.silent else cut(attempt.tokens, begin, frames, keep_rest=independent)
        more = independent and pieces is not None and frames - pieces.advance >= SHORTEST_REST
        return Outcome(row.chunk, attempt, row.temperature, pieces, more=more)

    def _align(self, outcomes: dict[Row, Outcome], tried: Tried) -> list[tuple[Row, Outcome]]:
        """Returns the outcomes, with the alignment of each text if it is requested and there is text."""
        texts: dict[Row, list[int]] = {}
        for row, outcome in outcomes.items():
            decoding = row.transcript.decoding
            if outcome.cut and (decoding.words or decoding.logprobs):
                tokens = [token for phrase in outcome.cut.phrases for token in phrase.tokens]
                texts[row] = text_tokens(tokens, self._runtime.vocabulary)
        aligned: dict[Row, Aligned] = {}
        rows = [row for row, text in texts.items() if text]
        for columns in sorted({row.columns for row in rows}):
            same = [row for row in rows if row.columns == columns]
            found = guarded(same, lambda some: self._aligned(some, [texts[row] for row in some]))
            aligned.update(found.results)
            tried.note(found)
        gone = {row for row, _ in tried.refused}
        return [
            (row, replace(outcome, aligned=aligned.get(row))) for row, outcome in outcomes.items() if row not in gone
        ]

    def _aligned(self, rows: Sequence[Row], texts: Sequence[Sequence[int]]) -> list[Aligned]:
        vocabulary = self._runtime.vocabulary
        starts = [vocabulary.start(row.transcript.language, row.transcript.decoding.task) for row in rows]
        frames = [row.chunk.frames for row in rows]
        return self._runtime.align([row.window for row in rows], starts, texts, frames)


class PartialDecoder:
    """A greedy, provisional decoder of speech that is not over, without times and with a single attempt."""

    def __init__(self, runtime: Runtime, shortest: int) -> None:
        """`shortest` is the least number of columns to encode."""
        self._runtime = runtime
        self._shortest = shortest

    def decode(self, chosen: Sequence[tuple[RunningTranscript, SpectrogramChunk]]) -> list[PartialText]:
        """Returns the partials of requests; none for speech that is still unintelligible. Raises EngineError."""
        lengths: dict[int, list[tuple[RunningTranscript, SpectrogramChunk]]] = {}
        for transcript, chunk in chosen:
            lengths.setdefault(columns_for(chunk.frames, self._shortest, lengths), []).append((transcript, chunk))
        return [partial for columns, group in lengths.items() for partial in self._decode(columns, group)]

    def _decode(self, columns: int, group: Sequence[tuple[RunningTranscript, SpectrogramChunk]]) -> list[PartialText]:
        runtime = self._runtime
        windows = runtime.encode(np.stack([chunk.mel[:, :columns] for _, chunk in group]))
        languages = [transcript.language for transcript, _ in group]
        if not all(languages):
            # For this partial only: the first whole window determines a request's language.
            found = runtime.detect(windows)
            languages = [given or guess for given, (guess, _) in zip(languages, found, strict=True)]
        stop = [runtime.vocabulary.no_timestamps]
        prompts = [
            transcript.prompt(language) + stop for (transcript, _), language in zip(group, languages, strict=True)
        ]
        room = runtime.context_tokens - max(map(len, prompts))
        step = Step(
            temperature=0.0,
            beam_size=1,
            best_of=1,
            max_tokens=min(runtime.context_tokens // 2, room),
            timestamps=False,
        )
        partials = []
        for (transcript, chunk), decoded in zip(group, runtime.decode(windows, prompts, step), strict=True):
            attempt = judged(decoded, 0.0, runtime.vocabulary)
            text = runtime.vocabulary.decode(decoded.tokens)
            if text.strip() and not attempt.failed and not attempt.silent:
                window = chunk.window
                partials.append(PartialText(transcript.request, text, round(window.start, 3), round(window.end, 3)))
        return partials


# Steps that may begin and end while one is running. The watchdog sees steps end: if one of them hangs, the others must
# not hide it for long.
OVERTAKING = 64


@dataclass(slots=True, eq=False)
class Work:
    """A step of the batch loop."""

    compute: Callable[[], Any]  # in a lane: calls the runtime, does not touch the loop
    settle: Callable[[Any], None]  # in the loop's thread, with the result
    windows: int
    encoding: Sequence[Row] = ()  # that the step encodes
    result: Any = None
    fault: BaseException | None = None  # of `compute`: a defect, not a runtime's error for a batch
    overtaken: int = 0  # steps that began later and ended earlier

    def run(self) -> None:
        """Computes the step and keeps its result or fault for the loop."""
        try:
            self.result = self.compute()
        except BaseException as fault:  # raised again by `Lanes.take`, in the loop's thread
            self.fault = fault


class Lanes:
    """Up to `count` parallel lanes, each a thread; a single lane uses the calling thread."""

    def __init__(self, count: int, ended: Callable[[Work], None]) -> None:
        """`ended` is called with each computed step, in the thread that computed it."""
        self.count = count
        self._ended = ended
        self._pool = ThreadPoolExecutor(count, "lane") if count > 1 else None
        self.under_way: list[Work] = []  # oldest first

    @property
    def free(self) -> bool:
        """True if another step may start now."""
        if not self.under_way:
            return True
        return len(self.under_way) < self.count and self.under_way[0].overtaken < OVERTAKING

    def start(self, work: Work) -> None:
        """Starts a step; `take` must follow once it has ended."""
        self.under_way.append(work)
        if self._pool:
            self._pool.submit(self._run, work)
        else:
            self._run(work)

    def take(self, work: Work) -> Any:
        """Removes a step that has ended and returns its result. Raises the fault of its computation."""
        place = self.under_way.index(work)
        del self.under_way[place]
        for older in self.under_way[:place]:
            older.overtaken += 1
        if work.fault:
            raise work.fault
        return work.result

    def close(self) -> None:
        """Starts no more steps; running ones end by themselves."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Work) -> None:
        work.run()
        self._ended(work)
