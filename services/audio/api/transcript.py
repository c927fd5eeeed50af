"""A growing transcript: the core's events of one request, collected for the response."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from services.audio.engine.messages import Finished, LanguageFound, Segment, TokenLogprob
from services.audio.transcription import Event, Started


@dataclass(slots=True)
class Transcript:
    """The answer to a request so far; complete once `finished` is set."""

    model_id: str = ""
    language: str = ""  # ISO 639-1; empty until it is known
    probability: float = 0.0  # of the language
    segments: list[Segment] = field(default_factory=list)
    finished: Finished | None = None
    _pieces: list[str] = field(default_factory=list)
    _space: str = ""  # at the end of the text so far: it counts only if more text follows

    @property
    def text(self) -> str:
        """The text so far: the joined deltas, without surrounding space."""
        return "".join(self._pieces)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """The logprobs of all tokens so far."""
        return [token for segment in self.segments for token in segment.logprobs or ()]

    @property
    def seconds(self) -> float:
        """Length of the sound; 0 until the request has finished."""
        return self.finished.seconds if self.finished else 0.0

    @property
    def speech_seconds(self) -> float:
        """Length of the sound that was decoded as speech."""
        return self.finished.speech_seconds if self.finished else 0.0

    @property
    def tokens(self) -> int:
        """The number of generated tokens."""
        return self.finished.tokens if self.finished else 0

    @property
    def facts(self) -> dict[str, float]:
        """The fields for the request's log line."""
        return {"seconds": round(self.seconds, 2), "speech": round(self.speech_seconds, 2), "tokens": self.tokens}

    def add(self, event: Event) -> str:
        """Adds the next event. Returns the text that it adds; "" for none."""
        if isinstance(event, Started):
            self.model_id = event.model_id
        elif isinstance(event, LanguageFound):
            self.language, self.probability = event.language, event.probability
        elif isinstance(event, Finished):
            self.language = event.language or self.language
            self.finished = event
        elif isinstance(event, Segment):
            self.segments.append(event)
            return self._append(event.text)
        return ""

    async def gather(self, events: AsyncIterator[Event]) -> None:
        """Adds all events."""
        async for event in events:
            self.add(event)

    def _append(self, text: str) -> str:
        joined = self._space + text if self._pieces else text.lstrip()
        delta = joined.rstrip()
        self._space = joined[len(delta) :]
        if delta:
            self._pieces.append(delta)
        return delta
