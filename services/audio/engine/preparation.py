"""The preparation thread: finds speech, cuts windows and makes their spectrograms while a batch runs.

Sound is processed only as fast as the loop takes its windows: the rest waits unprocessed, and the service sends only
a limited amount ahead of the reported consumption. Requests take turns, so a long file does not delay a short one.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from services.audio.engine.mel import Closed, LogMel, RequestOpened, Seek, SpectrogramChunk, Taken, log_mel
from services.audio.engine.messages import SAMPLE_RATE, Consumed, Decoding, Sound, Submit
from services.audio.engine.runtime import Runtime
from services.audio.engine.vad import SpeechMeter
from services.audio.engine.window import Window, no_samples
from services.audio.engine.window_planner import SpeechWindowPlanner, WholeWindowPlanner
from services.worker.loop import Turns, WorkerLoop
from services.worker.messages import Cancel, EngineError, Stop

SAMPLE_BYTES = 2
BLOCK_BYTES = 8 * SAMPLE_RATE * SAMPLE_BYTES  # of one request, processed in one turn
HELD_SAMPLES = 60 * SAMPLE_RATE  # most that a planner holds before it is fed more
BACKLOG_BYTES = 1200 * SAMPLE_RATE * SAMPLE_BYTES  # of one request; twice what the service sends ahead
PARTIAL_SAMPLES = SAMPLE_RATE  # of new sound between two partials of a request

PrepareInbox = queue.SimpleQueue[Submit | Sound | Cancel | Taken | Seek | Stop]


@dataclass(slots=True, eq=False)
class _Feed:
    """The sound of one request."""

    request: int
    client: str
    decoding: Decoding
    planner: SpeechWindowPlanner | WholeWindowPlanner
    mel: LogMel
    backlog: deque[bytes] = field(default_factory=deque)
    waiting: int = 0  # bytes in the backlog
    ended: bool = False  # the last sound has arrived
    fed_all: bool = False  # and was fed to the planner
    moved: bool = False  # the loop has sent the start of the next window
    number: int = 0  # of the next chunk
    out: int = 0  # chunks that the loop has not taken
    partial_out: bool = False
    partial_at: int = 0  # samples fed when the last partial was made
    reported: int = 0  # samples reported to the service as consumed

    def add(self, samples: bytes, last: bool) -> None:
        """Appends sound to the backlog; drops sound after the last."""
        if self.ended:
            return
        if samples:
            self.backlog.append(samples)
            self.waiting += len(samples)
        self.ended = last

    def take(self) -> bytes:
        """Returns the next block of whole samples. Half a sample waits for its rest, or is dropped at the end."""
        block = bytearray()
        while self.backlog and len(block) < BLOCK_BYTES:
            block += self.backlog.popleft()
        keep = min(len(block), BLOCK_BYTES) // SAMPLE_BYTES * SAMPLE_BYTES
        rest = bytes(block[keep:])
        if rest and (self.backlog or not self.ended or len(rest) >= SAMPLE_BYTES):
            self.backlog.appendleft(rest)
        self.waiting = sum(map(len, self.backlog))
        return bytes(block[:keep])


class Preparation(WorkerLoop[Submit | Sound | Cancel | Taken | Seek]):
    """The preparation of one loaded model's requests. `to_loop` sends to the loop, `send` to the service."""

    def __init__(
        self,
        runtime: Runtime,
        inbox: PrepareInbox,
        to_loop: Callable[[RequestOpened | SpectrogramChunk | Closed | Cancel | Stop], None],
        send: Callable[[object], None],
    ) -> None:
        super().__init__(inbox, send)
        self._runtime = runtime
        self._to_loop = to_loop
        self._ahead = runtime.ready.batch_windows  # chunks of one request that may wait for the loop
        self._feeds: dict[int, _Feed] = {}
        self._turns = Turns()

    def turn(self) -> bool:
        """Takes messages and prepares one block of one request; waits for a message if it has nothing to do."""
        if super().turn():
            return True
        self._to_loop(Stop())
        return False

    def _is_idle(self) -> bool:
        return not any(map(self._can_process, self._feeds.values()))

    def _advance(self) -> None:
        feed = self._turns.next(feed for feed in self._feeds.values() if self._can_process(feed))
        if feed:
            try:
                self._process(feed)
            except EngineError as error:
                self._fail(feed.request, error)

    # --- incoming messages

    def _take(self, message: Submit | Sound | Cancel | Taken | Seek) -> None:
        if isinstance(message, Submit):
            self._open(message)
            return
        feed = self._feeds.get(message.request)
        if isinstance(message, Cancel):
            self._forget(message.request)
            self._to_loop(message)
        elif feed is None:
            return  # refused or cancelled while the message was on its way
        elif isinstance(message, Sound):
            self._add(feed, message)
        elif isinstance(message, Seek):
            if isinstance(feed.planner, WholeWindowPlanner):
                feed.planner.seek(message.frame)
                feed.moved = True
        elif message.partial:
            feed.partial_out = False
        else:
            feed.out -= 1

    def _open(self, submit: Submit) -> None:
        decoding = submit.decoding
        try:
            self._check(decoding)
            vad = decoding.vad
            planner = SpeechWindowPlanner(vad, SpeechMeter(), decoding.live) if vad else WholeWindowPlanner()
            prompt = self._runtime.vocabulary.encode(f" {decoding.prompt.strip()}") if decoding.prompt.strip() else []
        except EngineError as error:
            self._fail(submit.request, error)
            return
        self._feeds[submit.request] = _Feed(
            submit.request, submit.client, decoding, planner, LogMel(self._runtime.n_mels)
        )
        self._to_loop(RequestOpened(submit.request, submit.client, decoding, prompt, submit.deadline))

    def _check(self, decoding: Decoding) -> None:
        ready = self._runtime.ready
        if decoding.language and decoding.language not in ready.languages:
            known = "English only" if ready.languages == ["en"] else f"{len(ready.languages)} languages"
            message = f"the model does not support the language {decoding.language!r:.20}: it supports {known}"
            raise EngineError("INVALID_REQUEST", message, "language")
        if decoding.task == "translate" and not ready.multilingual:
            raise EngineError("INVALID_REQUEST", "the model supports English only and cannot translate", "model")
        if not decoding.temperatures:
            raise EngineError("INVALID_REQUEST", "no temperature is given", "temperature")

    def _add(self, feed: _Feed, sound: Sound) -> None:
        if feed.waiting + len(sound.samples) > BACKLOG_BYTES:
            seconds = BACKLOG_BYTES // SAMPLE_BYTES // SAMPLE_RATE
            message = f"more than {seconds} s of audio were sent ahead of decoding"
            self._fail(feed.request, EngineError("INTERNAL", message))
            return
        feed.add(sound.samples, sound.last)

    def _fail(self, request: int, error: EngineError) -> None:
        self._forget(request)
        self._to_loop(Cancel(request))
        self._refuse(request, error)

    def _forget(self, request: int) -> None:
        feed = self._feeds.pop(request, None)
        if feed:
            self._turns.forget(feed, self._feeds.values())

    # --- windows and chunks

    def _can_process(self, feed: _Feed) -> bool:
        if feed.out >= self._ahead:
            return False
        return feed.moved or self._can_feed(feed)

    def _can_feed(self, feed: _Feed) -> bool:
        planner = feed.planner
        waits = feed.waiting >= SAMPLE_BYTES or (feed.ended and not feed.fed_all)
        return waits and planner.fed - planner.consumed < HELD_SAMPLES

    def _process(self, feed: _Feed) -> None:
        """Feeds one block and sends the windows that it completes."""
        planner = feed.planner
        feed.moved = False
        if self._can_feed(feed):
            block = feed.take()
            if block:
                planner.feed(np.frombuffer(block, dtype="<i2").astype(np.float32) / np.float32(32768))
            if feed.ended and not feed.backlog:
                planner.end()
                feed.fed_all = True
        while window := planner.ready():
            self._to_loop(self._chunk(feed, window))
            feed.number += 1
            feed.out += 1
        self._send_partial(feed)
        if planner.consumed > feed.reported:
            feed.reported = planner.consumed
            self._send(Consumed(feed.request, feed.reported))
        if planner.done:
            self._forget(feed.request)
            self._to_loop(Closed(feed.request, planner.fed))

    def _send_partial(self, feed: _Feed) -> None:
        """Sends a partial of live speech if there is enough new sound and nothing else of the request waits."""
        planner = feed.planner
        if not feed.decoding.live or feed.partial_out or feed.out or feed.backlog or feed.ended:
            return
        if planner.fed - feed.partial_at < PARTIAL_SAMPLES:
            return
        window = planner.open()
        if window:
            feed.partial_out, feed.partial_at = True, planner.fed
            self._to_loop(self._chunk(feed, window, partial=True))

    def _chunk(self, feed: _Feed, window: Window, partial: bool = False) -> SpectrogramChunk:
        mel = log_mel(window.samples, self._runtime.n_mels) if partial else feed.mel.of(window)
        bare = replace(window, samples=no_samples(), before=no_samples(), after=no_samples())
        return SpectrogramChunk(feed.request, feed.number, mel, bare, window.frames, partial)
