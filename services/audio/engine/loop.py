"""The batch loop: windows of all requests share encoder and decoder batches, step by step.

A step is one call of the runtime: it encodes windows, decodes them, or decodes suspicious results again at a higher
temperature. A runtime with several lanes computes that many steps in parallel threads; this loop alone chooses the next
step and knows the requests. The loop takes messages between steps, so a cancelled request costs at most the running
steps, and a new window joins the batch that is being filled. The service enforces the time limits.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from services.audio.engine.mel import Closed, RequestOpened, Seek, SpectrogramChunk, Taken
from services.audio.engine.messages import (
    SAMPLE_RATE,
    Counters,
    Finished,
    LanguageFound,
    PartialText,
    Stepped,
    Transcribed,
)
from services.audio.engine.outcome import Outcome
from services.audio.engine.running_transcript import Row, RunningTranscript, columns_for
from services.audio.engine.runtime import WINDOW_FRAMES, Encoded, Runtime
from services.audio.engine.steps import Computed, Lanes, PartialDecoder, Steps, Tried, Work
from services.worker.loop import DEADLINE_PASSED, Pace, Turns, WorkerLoop, expired
from services.worker.messages import Cancel, EngineError, Phase, Stop

# Longest time to fill a batch: encoding more windows makes decoding cheaper, but the first window waits.
FILL_SECONDS = 2.0

LoopInbox = queue.SimpleQueue[RequestOpened | SpectrogramChunk | Closed | Cancel | Stop | Work]


class BatchLoop(WorkerLoop[RequestOpened | SpectrogramChunk | Closed | Cancel | Work]):
    """The batch loop of one loaded model. `to_preparation` sends to the preparation, `send` to the service."""

    def __init__(
        self,
        runtime: Runtime,
        inbox: LoopInbox,
        to_preparation: Callable[[Taken | Seek | Cancel], None],
        send: Callable[[object], None],
        whole_windows: bool = False,
    ) -> None:
        super().__init__(inbox, send)
        self._runtime = runtime
        self._to_preparation = to_preparation
        self._shortest = WINDOW_FRAMES if whole_windows else runtime.shortest_frames
        self._batch = runtime.ready.batch_windows
        self._transcripts: dict[int, RunningTranscript] = {}
        self._turns = Turns()
        self._again: list[Row] = []  # to be encoded again, whole
        self._encoded: list[Row] = []  # to be decoded
        self._failing: list[Row] = []  # to be decoded at a higher temperature
        self._owed = False  # the failing rows are next
        self._filling = 0.0  # when the current batch began to fill
        self._pace = Pace(1, self._batch, start=self._batch)  # windows decoded in one step
        self._partials = PartialDecoder(runtime, self._shortest)
        self._computes = Steps(runtime)
        # A single lane ends a step before `start` returns; several lanes report the end from their threads.
        self._lanes = Lanes(runtime.lanes, inbox.put if runtime.lanes > 1 else self._end)
        self._steps = 0
        self._ended: list[int] = []  # windows of the steps that ended in this turn
        self._reported: Counters | None = None

    def run(self) -> None:
        """Serves until a Stop arrives."""
        super().run()
        self._lanes.close()

    def _is_idle(self) -> bool:
        return not self._lanes.free or self._next_step() is None

    def _advance(self) -> None:
        for transcript in expired(self._transcripts.values()):
            self._fail(transcript, DEADLINE_PASSED)
        for _ in range(self._lanes.count):
            step = self._next_step() if self._lanes.free else None
            if not step:
                break
            self._lanes.start(step())
        self._finish()
        self._report()

    def _end(self, work: Work) -> None:
        """Settles a step that has ended."""
        work.settle(self._lanes.take(work))
        self._ended.append(work.windows)

    # --- incoming messages

    def _take(self, message: RequestOpened | SpectrogramChunk | Closed | Cancel | Work) -> None:
        if isinstance(message, Work):
            self._end(message)
            return
        if isinstance(message, RequestOpened):
            opened = RunningTranscript(message, self._runtime.vocabulary, self._runtime.context_tokens)
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
            transcript.partial = message
        else:
            transcript.waiting.append(message)

    def _forget(self, transcript: RunningTranscript) -> None:
        transcript.gone = True
        del self._transcripts[transcript.request]
        self._turns.forget(transcript, self._transcripts.values())
        for rows in (self._again, self._encoded, self._failing):
            rows[:] = [row for row in rows if not row.gone]

    def _fail(self, transcript: RunningTranscript, error: EngineError) -> None:
        if not transcript.gone:
            self._forget(transcript)
            self._to_preparation(Cancel(transcript.request))
            self._refuse(transcript.request, error)

    # --- scheduling

    def _next_step(self) -> Callable[[], Work] | None:
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
        # Partials wait until no final window does.
        return self._decode_partials if any(one.partial for one in self._transcripts.values()) else None

    def _encoding(self) -> list[Row]:
        """Returns the rows that are being encoded, in any lane."""
        return [row for work in self._lanes.under_way for row in work.encoding]

    def _room(self) -> int:
        """Returns how many rows may still be encoded before the next decoding step."""
        return self._batch - len(self._again) - len(self._encoded) - len(self._failing) - len(self._encoding())

    def _fillable(self) -> bool:
        return self._room() > 0 and any(self._ready())

    def _share(self) -> int:
        """Returns the most rows that one step decodes: one lane's share of all rows, so that no lane is idle."""
        waiting = sum(len(transcript.waiting) for transcript in self._transcripts.values())
        rows = sum(transcript.running for transcript in self._transcripts.values())
        return min(self._pace.limit, max(1, -(-(waiting + rows) // self._lanes.count)))

    def _ready(self) -> Iterator[RunningTranscript]:
        """Yields the requests with a window that may be taken now."""
        for transcript in self._transcripts.values():
            # A request whose language is unknown begins with one window. Segments are sent in order: a request does not
            # get far ahead of a window that keeps failing.
            if not transcript.waiting or (not transcript.language and transcript.running):
                continue
            if transcript.waiting[0].number < transcript.next + 2 * self._batch:
                yield transcript

    # --- encoding

    def _encode_next(self) -> Work:
        rows: list[Row] = []
        room = min(self._room(), self._runtime.encode_windows)
        others = {row.columns for row in (*self._encoded, *self._encoding())}
        while len(rows) < room:
            transcript = self._turns.next(self._ready())
            if transcript is None:
                break
            chunk = transcript.waiting.popleft()
            transcript.running += 1
            if not transcript.begun:
                transcript.begun = True
                self._phases.append(Phase(transcript.request, "windows", time.monotonic()))
            self._to_preparation(Taken(transcript.request))
            shortest = WINDOW_FRAMES if transcript.sequential else self._shortest
            rows.append(Row(transcript, chunk, columns_for(chunk.frames, shortest, others)))
            others.add(rows[-1].columns)
        return self._encode(rows)

    def _encode_again(self) -> Work:
        rows = self._again[: self._runtime.encode_windows]
        del self._again[: len(rows)]
        return self._encode(rows)

    def _encode(self, rows: list[Row]) -> Work:
        unknown = {row for row in rows if not row.transcript.language}

        def compute() -> tuple[Computed[Encoded], Computed[tuple[str, float]]]:
            encoded = self._computes.encode(rows)
            return encoded, self._computes.detect([pair for pair in encoded.results if pair[0] in unknown])

        return Work(compute, self._take_encoded, len(rows), encoding=rows)

    def _take_encoded(self, computed: tuple[Computed[Encoded], Computed[tuple[str, float]]]) -> None:
        encoded, detected = computed
        self._fail_all(encoded)
        self._fail_all(detected)
        for row, (language, probability) in detected.results:
            row.transcript.language, row.transcript.probability = language, probability
        if not self._encoded:
            self._filling = time.monotonic()
        for row, window in encoded.results:
            if not row.gone:
                row.window, row.prompt = window, row.transcript.prompt()
                self._encoded.append(row)

    # --- decoding

    def _decode_first(self) -> Work:
        self._owed = bool(self._failing)
        return self._decode(self._encoded)

    def _retry(self) -> Work:
        self._owed = False
        return self._decode(self._failing)

    def _decode(self, waiting: list[Row]) -> Work:
        """Decodes the oldest waiting row together with rows of the same kind."""
        kind = waiting[0].kind()
        rows = [row for row in waiting if row.kind() == kind][: self._share()]
        waiting[:] = [row for row in waiting if row not in rows]
        return Work(lambda: self._computes.decode(rows), self._take_decoded, len(rows))

    def _take_decoded(self, tried: Tried) -> None:
        self._pace.took(len(tried.results) + len(tried.failed), tried.seconds)
        self._fail_all(tried)
        for row in tried.failed:
            if not row.gone:
                (self._again if row.window is None else self._failing).append(row)
        for row, outcome in tried.results:
            if not row.gone:
                self._send_results(row.transcript, outcome)

    def _fail_all(self, computed: Computed[Any]) -> None:
        """Refuses the requests of failed rows; makes batches smaller once memory has run out."""
        if computed.too_many:
            self._batch = max(1, computed.too_many // 2)
        for row, error in computed.refused:
            self._fail(row.transcript, error)

    # --- results

    def _send_results(self, transcript: RunningTranscript, outcome: Outcome) -> None:
        if outcome.more and outcome.cut:
            self._again.append(Row(transcript, outcome.chunk.rest(outcome.cut.advance), WINDOW_FRAMES))
        else:
            transcript.running -= 1
        segments = transcript.settle(outcome)
        if segments:
            if not transcript.language_sent:
                transcript.language_sent = True
                self._send(LanguageFound(transcript.request, transcript.language, transcript.probability))
            self._send(Transcribed(transcript.request, segments))
        if transcript.sequential:
            self._to_preparation(Seek(transcript.request, transcript.seek))
            if transcript.detects and not transcript.language_sent:
                transcript.language = ""  # it was detected in silence
        if transcript.partial and transcript.partial.number < transcript.next:
            self._drop_partial(transcript)

    def _drop_partial(self, transcript: RunningTranscript) -> None:
        transcript.partial = None
        self._to_preparation(Taken(transcript.request, partial=True))

    def _decode_partials(self) -> Work:
        """Decodes partials of open speech."""
        transcripts = [one for one in self._transcripts.values() if one.partial]
        chosen: list[tuple[RunningTranscript, SpectrogramChunk]] = []
        while len(chosen) < self._batch and (transcript := self._turns.next(transcripts)):
            transcripts.remove(transcript)
            if transcript.partial:
                chosen.append((transcript, transcript.partial))
                self._drop_partial(transcript)

        def compute() -> list[PartialText] | EngineError:
            try:
                return self._partials.decode(chosen)
            except EngineError as error:
                return error

        return Work(compute, lambda found: self._take_partials(chosen, found), len(chosen))

    def _take_partials(
        self, chosen: Sequence[tuple[RunningTranscript, SpectrogramChunk]], found: list[PartialText] | EngineError
    ) -> None:
        if isinstance(found, EngineError):
            for transcript, _ in chosen:
                self._fail(transcript, found)
            return
        # Final segments may have been sent meanwhile.
        open_still = {one.request for one, chunk in chosen if not one.gone and chunk.number >= one.next}
        for partial in found:
            if partial.request in open_still:
                self._send(partial)

    def _finish(self) -> None:
        for transcript in [one for one in self._transcripts.values() if one.done]:
            seconds = (transcript.samples or 0) / SAMPLE_RATE
            language = transcript.language if transcript.language_sent else ""
            speech = min(transcript.decoded_frames / 100, seconds)
            self._send(Finished(transcript.request, language, seconds, speech, transcript.tokens))
            self._forget(transcript)

    def _report(self) -> None:
        """Sends a heartbeat after every step, and whenever the counters have changed without one."""
        running = sum(one.running > 0 for one in self._transcripts.values())
        waiting = len(self._transcripts) - running
        for windows in self._ended:
            self._steps += 1
            self._send_step(Counters(self._steps, running, waiting, windows))
        self._ended.clear()
        counters = Counters(self._steps, running, waiting, 0)
        if not self._reported or (self._reported.running, self._reported.waiting) != (running, waiting):
            self._send_step(counters)

    def _send_step(self, counters: Counters) -> None:
        self._send(Stepped(counters, self._phases))
        self._phases, self._reported = [], counters
