"""A preparation and a batch loop on a real model, stepped by hand so that no test depends on threads."""

from __future__ import annotations

import queue

import numpy as np

from services.audio.engine.loop import BatchLoop
from services.audio.engine.messages import (
    Consumed,
    Decoding,
    Finished,
    LanguageFound,
    PartialText,
    Segment,
    Sound,
    Submit,
    Transcribed,
)
from services.audio.engine.preparation import Preparation
from services.audio.engine.runtime import Runtime
from services.audio.engine.window import Samples
from services.worker.messages import RequestRefused


class EngineSession:
    """The requests of one model."""

    def __init__(self, runtime: Runtime, *, whole_windows: bool = False) -> None:
        self._to_preparation: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._to_loop: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.sent: list[object] = []
        self.preparation = Preparation(runtime, self._to_preparation, self._to_loop.put, self.sent.append)
        self.loop = BatchLoop(runtime, self._to_loop, self._to_preparation.put, self.sent.append, whole_windows)
        self._requests = 0

    def submit(self, decoding: Decoding, *, client: str = "a") -> int:
        """Submits a request without its audio."""
        self._requests += 1
        self._to_preparation.put(Submit(self._requests, client, decoding))
        return self._requests

    def feed(self, request: int, samples: Samples, *, last: bool = False) -> None:
        self._to_preparation.put(Sound(request, np.round(samples * 32767).astype("<i2").tobytes(), last))

    def transcribe(self, sounds: list[Samples], decoding: Decoding) -> list[list[Segment]]:
        """Transcribes whole recordings that are submitted at the same time; returns the segments of each."""
        requests = [self.submit(decoding) for _ in sounds]
        for request, samples in zip(requests, sounds, strict=True):
            self.feed(request, samples, last=True)
        self.work(*requests)
        return [self.segments(request) for request in requests]

    def prepare(self) -> bool:
        """Prepares one block if one is ready."""
        preparation = self.preparation
        busy = not self._to_preparation.empty() or any(map(preparation._can_process, preparation._feeds.values()))
        return busy and preparation.turn()

    def work(self, *requests: int) -> None:
        """Runs until the requests are finished."""
        while not {message.request for message in self.of(Finished)} >= set(requests):
            assert not self.of(RequestRefused)
            if not self.prepare():
                assert self.loop.turn()

    def settle(self) -> None:
        """Runs until the only work left is to wait for audio."""
        while self.prepare() or not self._to_loop.empty() or self.loop._next_step():
            if not self._to_loop.empty() or self.loop._next_step():
                assert self.loop.turn()

    def of(self, kind: type) -> list:
        return [message for message in self.sent if isinstance(message, kind)]

    def segments(self, request: int) -> list[Segment]:
        return [one for reported in self.of(Transcribed) if reported.request == request for one in reported.segments]

    def text(self, request: int) -> str:
        return "".join(segment.text for segment in self.segments(request))

    def detected(self, request: int) -> LanguageFound | None:
        return next((one for one in self.of(LanguageFound) if one.request == request), None)

    def partials(self, request: int) -> list[PartialText]:
        return [one for one in self.of(PartialText) if one.request == request]

    def consumed(self, request: int) -> int:
        return max((one.samples for one in self.of(Consumed) if one.request == request), default=0)
