"""Partials: a fast, provisional decoding of speech that is not over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.audio.engine.attempt import judged
from services.audio.engine.chunk import Chunk
from services.audio.engine.messages import PartialText
from services.audio.engine.row import columns_for
from services.audio.engine.running_transcript import RunningTranscript
from services.audio.engine.runtime import Runtime, Step


class PartialDecoder:
    """A greedy decoder of open speech, without times and with a single attempt."""

    def __init__(self, runtime: Runtime, shortest: int) -> None:
        """`shortest` is the least number of columns to encode."""
        self._runtime = runtime
        self._shortest = shortest

    def decode(self, chosen: Sequence[tuple[RunningTranscript, Chunk]]) -> list[PartialText]:
        """Returns the partials of requests; none for speech that is still unintelligible. Raises EngineError."""
        lengths: dict[int, list[tuple[RunningTranscript, Chunk]]] = {}
        for transcript, chunk in chosen:
            lengths.setdefault(columns_for(chunk.frames, self._shortest, lengths), []).append((transcript, chunk))
        return [partial for columns, group in lengths.items() for partial in self._decode(columns, group)]

    def _decode(self, columns: int, group: Sequence[tuple[RunningTranscript, Chunk]]) -> list[PartialText]:
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
