"""The batch loop: windows of all requests share encoder and decoder batches, step by step.

A step is one call of the runtime: windows are encoded, decoded, or, where a result looks wrong, decoded again at a
higher temperature. Between two steps the loop takes messages, so a cancelled request costs at most the step that runs,
and a window that has just arrived joins the batch that is being filled. Time limits are the service's.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from services.audio.engine.attempt import Attempt, judged
from services.audio.engine.chunk import Chunk, Closed, Opened, Seek, Taken
from services.audio.engine.glimpses import Glimpses
from services.audio.engine.messages import (
    SAMPLE_RATE,
    Cancel,
    Counters,
    Detected,
    Finished,
    Refused,
    Stepped,
    Stop,
    Transcribed,
)
from services.audio.engine.outcome import Outcome, text_tokens
from services.audio.engine.phrases import cut
from services.audio.engine.row import Row, columns_for
from services.audio.engine.runtime import WINDOW_FRAMES, Aligned, Decoded, Runtime
from services.audio.engine.transcript import Transcript
from services.audio.engine.turns import Turns
from services.residency.messages import EngineError

# A batch is filled for so long at the most: encoding more windows makes decoding cheaper, but whoever is first waits.
FILL_SECONDS = 2.0
# Columns: where a window's text ends with so much of its sound left, the model has stopped in the middle of it.
SHORTEST_REST = 100

T = TypeVar("T")
LoopInbox = queue.SimpleQueue[Opened | Chunk | Closed | Cancel | Stop]


class BatchLoop:
    """Runs the requests of one loaded model. `hand` tells the preparation, `send` the service."""

    def __init__(
        self,
        runtime: Runtime,
        inbox: LoopInbox,
        hand: Callable[[Taken | Seek | Cancel], None],
        send: Callable[[object], None],
        whole_windows: bool = False,
    ) -> None:
        self._runtime = runtime
        self._inbox = inbox
        self._hand = hand
        self._send = send
        self._shortest = WINDOW_FRAMES if whole_windows else runtime.shortest_frames
        self._batch = runtime.ready.batch_windows
        self._transcripts: dict[int, Transcript] = {}
        self._turns = Turns()
        self._again: list[Row] = []  # to be encoded once more, whole
        self._encoded: list[Row] = []  # to be decoded
        self._failing: list[Row] = []  # to be decoded at a higher temperature
        self._owed = False  # whether the failing ones are next
        self._filling = 0.0  # since when a batch is being filled
        self._glimpses = Glimpses(runtime, self._shortest)
        self._steps = 0
        self._windows = 0  # of the last step
        self._reported: Counters | None = None

    def run(self) -> None:
        """Serves until a Stop arrives."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """One turn of the loop, at most one step; waits for a message when there is nothing to do."""
        if not self._take_messages():
            return False
        step = self._next_step()
        if step:
            step()
            self._steps += 1
        self._finish()
        self._report(step is not None)
        return True

    # --- what comes in

    def _take_messages(self) -> bool:
        wait = self._next_step() is None
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if isinstance(message, Stop):
                return False
            self._take(message)

    def _take(self, message: Opened | Chunk | Closed | Cancel) -> None:
        if isinstance(message, Opened):
            opened = Transcript(message, self._runtime.vocabulary, self._runtime.context_tokens)
            self._transcripts[message.request] = opened
            return
        transcript = self._transcripts.get(message.request)
        if transcript is None:
            return  # cancelled or refused
        if isinstance(message, Cancel):
            self._forget(transcript)
        elif isinstance(message, Closed):
            transcript.samples = message.samples
        elif message.partial:
            transcript.glimpse = message
        else:
            transcript.waiting.append(message)

    def _forget(self, transcript: Transcript) -> None:
        transcript.gone = True
        del self._transcripts[transcript.request]
        others = any(other.client == transcript.client for other in self._transcripts.values())
        self._turns.forget(transcript.request, transcript.client, others)
        for rows in (self._again, self._encoded, self._failing):
            rows[:] = [row for row in rows if not row.gone]

    def _refuse(self, transcript: Transcript, error: EngineError) -> None:
        if not transcript.gone:
            self._forget(transcript)
            self._hand(Cancel(transcript.request))
            self._send(Refused(request=transcript.request, code=error.code, message=error.message, param=error.param))

    # --- what is next

    def _next_step(self) -> Callable[[], None] | None:
        if self._failing and (self._owed or not (self._encoded or self._fillable())):
            return self._retry
        if self._again:
            return self._encode_again
        if self._fillable() and not (self._encoded and time.monotonic() - self._filling > FILL_SECONDS):
            return self._encode_next
        if self._encoded:
            return self._decode_first
        if self._fillable():
            return self._encode_next
        # Only where nothing final waits.
        return self._glimpse if any(one.glimpse for one in self._transcripts.values()) else None

    def _fillable(self) -> bool:
        rows = len(self._again) + len(self._encoded) + len(self._failing)
        return rows < self._batch and any(self._ready())

    def _ready(self) -> Iterator[Transcript]:
        """Requests with a window that may be taken now."""
        for transcript in self._transcripts.values():
            # Whoever's language is not known yet begins with one window. Segments are told in order: a request does not
            # get far ahead of a window that fails again and again.
            if not transcript.waiting or (not transcript.language and transcript.running):
                continue
            if transcript.waiting[0].number < transcript.next + 2 * self._batch:
                yield transcript

    # --- encoding

    def _encode_next(self) -> None:
        rows: list[Row] = []
        room = self._batch - len(self._again) - len(self._encoded) - len(self._failing)
        while len(rows) < min(room, self._runtime.encode_windows):
            transcript = self._turns.next(self._ready())
            if transcript is None:
                break
            chunk = transcript.waiting.popleft()
            transcript.running += 1
            self._hand(Taken(transcript.request))
            others = {row.columns for row in (*self._encoded, *rows)}
            shortest = WINDOW_FRAMES if transcript.sequential else self._shortest
            rows.append(Row(transcript, chunk, columns_for(chunk.frames, shortest, others)))
        self._encode(rows)

    def _encode_again(self) -> None:
        rows = self._again[: self._runtime.encode_windows]
        del self._again[: len(rows)]
        self._encode(rows)

    def _encode(self, rows: list[Row]) -> None:
        if not self._encoded:
            self._filling = time.monotonic()
        for columns in sorted({row.columns for row in rows}):
            same = [row for row in rows if row.columns == columns]
            for row, window in self._guarded(
                same, lambda some: self._runtime.encode(np.stack([row.mel for row in some]))
            ):
                row.window = window
                self._encoded.append(row)
        self._windows = len(rows)
        self._detect([row for row in rows if row.window is not None and not row.transcript.language])
        for row in rows:
            row.prompt = row.transcript.prompt()

    def _detect(self, rows: list[Row]) -> None:
        found = self._guarded(rows, lambda some: self._runtime.detect([row.window for row in some]))
        for row, (language, probability) in found:
            row.transcript.language, row.transcript.probability = language, probability

    # --- decoding

    def _decode_first(self) -> None:
        self._owed = bool(self._failing)
        self._decode(self._encoded)

    def _retry(self) -> None:
        self._owed = False
        self._decode(self._failing)

    def _decode(self, waiting: list[Row]) -> None:
        """Decodes the oldest of the rows that wait, and all that can be decoded with it."""
        kind = waiting[0].kind()
        rows = [row for row in waiting if row.kind() == kind]
        waiting[:] = [row for row in waiting if row.kind() != kind]
        self._windows = len(rows)
        settled: list[tuple[Row, Attempt]] = []
        for row, decoded in self._guarded(rows, self._decoded):
            attempt = judged(decoded, row.temperature, self._runtime.vocabulary)
            if not attempt.failed:
                settled.append((row, attempt))
            elif not row.failed_again(attempt):
                settled.append((row, row.best()))
            elif row.window is None:
                self._again.append(row)
            else:
                self._failing.append(row)
        self._settle(settled)

    def _decoded(self, rows: Sequence[Row]) -> list[Decoded]:
        context = self._runtime.context_tokens
        longest = max(len(row.prompt) for row in rows)
        step = rows[0].step(min(context // 2, context - longest))
        return self._runtime.decode([row.window for row in rows], [row.prompt for row in rows], step)

    # --- what comes out

    def _settle(self, settled: Sequence[tuple[Row, Attempt]]) -> None:
        begin = self._runtime.vocabulary.timestamp_begin
        outcomes: dict[Row, Outcome] = {}
        for row, attempt in settled:
            independent, frames = not row.transcript.sequential, row.chunk.frames
            pieces = None if attempt.silent else cut(attempt.tokens, begin, frames, keep_rest=independent)
            more = independent and pieces is not None and frames - pieces.advance >= SHORTEST_REST
            outcomes[row] = Outcome(row.chunk, attempt, row.temperature, pieces, more=more)
        aligned = self._align(outcomes)
        for row, outcome in outcomes.items():
            if not row.gone:
                self._tell(row.transcript, replace(outcome, aligned=aligned.get(row)))

    def _align(self, outcomes: dict[Row, Outcome]) -> dict[Row, Aligned]:
        """Where the text of each row is in its sound, where that is wanted and there is text."""
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
            aligned.update(self._guarded(same, lambda some: self._aligned(some, [texts[row] for row in some])))
        return aligned

    def _aligned(self, rows: Sequence[Row], texts: Sequence[Sequence[int]]) -> list[Aligned]:
        vocabulary = self._runtime.vocabulary
        starts = [vocabulary.start(row.transcript.language, row.transcript.decoding.task) for row in rows]
        frames = [row.chunk.frames for row in rows]
        return self._runtime.align([row.window for row in rows], starts, texts, frames)

    def _tell(self, transcript: Transcript, outcome: Outcome) -> None:
        if outcome.more and outcome.cut:
            self._again.append(Row(transcript, outcome.chunk.rest(outcome.cut.advance), WINDOW_FRAMES))
        else:
            transcript.running -= 1
        segments = transcript.settle(outcome)
        if segments:
            if not transcript.told_language:
                transcript.told_language = True
                self._send(Detected(transcript.request, transcript.language, transcript.probability))
            self._send(Transcribed(transcript.request, segments))
        if transcript.sequential:
            self._hand(Seek(transcript.request, transcript.seek))
            if transcript.detects and not transcript.told_language:
                transcript.language = ""  # found in silence
        if transcript.glimpse and transcript.glimpse.number < transcript.next:
            self._drop_glimpse(transcript)

    def _drop_glimpse(self, transcript: Transcript) -> None:
        transcript.glimpse = None
        self._hand(Taken(transcript.request, partial=True))

    def _glimpse(self) -> None:
        """Tells what open speech sounds like so far."""
        transcripts = [one for one in self._transcripts.values() if one.glimpse]
        chosen: list[tuple[Transcript, Chunk]] = []
        while len(chosen) < self._batch and (transcript := self._turns.next(transcripts)):
            transcripts.remove(transcript)
            if transcript.glimpse:
                chosen.append((transcript, transcript.glimpse))
                self._drop_glimpse(transcript)
        self._windows = len(chosen)
        try:
            partials = self._glimpses.decode(chosen)
        except EngineError as error:
            for transcript, _ in chosen:
                self._refuse(transcript, error)
            return
        for partial in partials:
            self._send(partial)

    def _finish(self) -> None:
        for transcript in [one for one in self._transcripts.values() if one.done]:
            seconds = (transcript.samples or 0) / SAMPLE_RATE
            speech = min(transcript.decoded_frames / 100, seconds)
            self._send(Finished(transcript.request, seconds, speech, transcript.tokens))
            self._forget(transcript)

    def _report(self, stepped: bool) -> None:
        """The heartbeat after every step, and whenever the counters have changed without one."""
        running = sum(one.running > 0 for one in self._transcripts.values())
        windows = self._windows if stepped else 0
        counters = Counters(self._steps, running, len(self._transcripts) - running, windows)
        if stepped or counters != self._reported:
            self._send(Stepped(counters))
            self._reported = counters

    def _guarded(self, rows: Sequence[Row], compute: Callable[[Sequence[Row]], Sequence[T]]) -> list[tuple[Row, T]]:
        """Computes something for each row. Where that fails for all together, each is tried alone, and refused."""
        if not rows:
            return []
        try:
            return list(zip(rows, compute(rows), strict=True))
        except EngineError as error:
            if len(rows) == 1:
                self._refuse(rows[0].transcript, error)
                return []
            if error.code == "OUT_OF_MEMORY":
                self._batch = max(1, len(rows) // 2)
        return [pair for row in rows for pair in self._guarded([row], compute)]
