"""A scripted runtime that records its calls, for tests of the order of computation."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.audio.engine.loop import BatchLoop
from services.audio.engine.mel import Closed, RequestOpened, SpectrogramChunk
from services.audio.engine.messages import Decoding, Finished, PartialText, Segment, Stepped, Transcribed, WhisperReady
from services.audio.engine.runtime import WINDOW_FRAMES, Aligned, Decoded, Floats, Step
from services.audio.engine.window import HOP, Piece, Window
from services.worker.messages import Cancel, EngineError

BEGIN = 2000  # timestamp token of 0 s
EOT = 1000
GOOD = -0.2  # mean logprob of a good result


class FewWords:
    """A vocabulary whose text tokens are the words w0 to w999."""

    multilingual = True
    languages = ("en", "de")
    sot, eot, sot_prev, no_speech, no_timestamps, timestamp_begin = 1001, EOT, 1002, 1003, 1004, BEGIN

    def start(self, language: str, task: str) -> list[int]:
        return [self.sot, 1010 + self.languages.index(language), 1020 + (task == "translate")]

    def encode(self, text: str) -> list[int]:
        return [int(word.removeprefix("w")) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f" w{token}" for token in tokens if token < EOT)

    def piece(self, token: int) -> bytes:
        return self.decode([token]).encode()

    def split_words(self, tokens: Sequence[int], language: str) -> tuple[list[str], list[list[int]]]:
        return [self.decode([token]) for token in tokens], [[token] for token in tokens]


def spoken(*words: int, start: float = 0.0, end: float = 1.0) -> list[int]:
    """Returns the tokens of a phrase between a start and an end timestamp."""
    return [BEGIN + round(start * 50), *words, BEGIN + round(end * 50)]


@dataclass
class Scripted:
    """Decodes window `name` to the results in `script[name]`, one per attempt; by default to the word `w<name>`."""

    batch: int = 4
    together: int = 1  # windows encoded in one call
    script: dict[int, list[Decoded]] = field(default_factory=dict)
    faults: dict[int, EngineError] = field(default_factory=dict)  # windows that cannot be encoded
    encoded: list[list[tuple[int, int]]] = field(default_factory=list)  # names and columns, one list per call
    decoded: list[list[int]] = field(default_factory=list)
    prompts: dict[int, list[int]] = field(default_factory=dict)  # the last prompt of each window
    steps: list[Step] = field(default_factory=list)
    aligned: list[list[int]] = field(default_factory=list)
    lanes: int = 1
    n_mels = 80
    context_tokens = 448
    shortest_frames = 1000
    vocabulary = FewWords()

    def __post_init__(self) -> None:
        self.ready = WhisperReady(languages=["en", "de"], multilingual=True, batch_windows=self.batch)
        self.encode_windows = self.together

    def encode(self, mels: Floats) -> list[int]:
        names = [int(mel[0, 0]) for mel in mels]
        self.encoded.append([(name, mels.shape[2]) for name in names])
        for name in names:
            if name in self.faults:
                raise self.faults[name]
        return names

    def detect(self, windows: Sequence[int]) -> list[tuple[str, float]]:
        return [("de", 0.75)] * len(windows)

    def decode(self, windows: Sequence[int], prompts: Sequence[Sequence[int]], step: Step) -> list[Decoded]:
        self.decoded.append(list(windows))
        self.steps.append(step)
        self.prompts |= {name: list(prompt) for name, prompt in zip(windows, prompts, strict=True)}
        return [self._result(name) for name in windows]

    def align(
        self,
        windows: Sequence[int],
        starts: Sequence[Sequence[int]],
        texts: Sequence[Sequence[int]],
        frames: Sequence[int],
    ) -> list[Aligned]:
        """Aligns each word to half a second."""
        self.aligned.append(list(windows))
        found = []
        for text in texts:
            places = np.arange(len(text) + 1)
            found.append(Aligned(places, places * 25, np.full(len(text), 0.5, np.float32)))
        return found

    def _result(self, name: int) -> Decoded:
        results = self.script.get(name)
        return results.pop(0) if results else Decoded(spoken(name), GOOD, 0.0)


def chunk(request: int, number: int, name: int, *, seconds: float = 4.0, start: float = 0.0, partial: bool = False):
    """Builds a window of a request; `name` identifies it in the runtime."""
    mel = np.zeros((80, WINDOW_FRAMES), np.float32)
    mel[0, 0] = name
    samples = round(seconds * 100) * HOP
    window = Window(np.zeros(0, np.float32), (Piece(0, round(start * 100) * HOP, samples),))
    return SpectrogramChunk(request, number, mel, window, round(seconds * 100), partial)


class LoopSession:
    """A batch loop that is stepped by hand."""

    def __init__(self, runtime: Scripted, *, whole_windows: bool = False) -> None:
        self.runtime = runtime
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.sent: list[object] = []
        self.handed: list[object] = []  # messages to the preparation
        self.loop = BatchLoop(runtime, self.inbox, self.handed.append, self.sent.append, whole_windows)

    def open(self, request: int, decoding: Decoding | None = None, *, client: str = "a", prompt: str = "") -> None:
        chosen = decoding or Decoding(language="en")
        self.inbox.put(RequestOpened(request, client, chosen, self.runtime.vocabulary.encode(prompt)))

    def put(self, *messages: object) -> None:
        for message in messages:
            self.inbox.put(message)

    def ask(self, request: int, *names: int, client: str = "a", decoding: Decoding | None = None) -> None:
        """Submits a complete request with one window per name."""
        self.open(request, decoding, client=client)
        windows = [chunk(request, number, name, start=number * 30) for number, name in enumerate(names)]
        self.put(*windows, Closed(request, len(names) * 480_000))

    def cancel(self, request: int) -> None:
        self.put(Cancel(request))

    def turn(self) -> None:
        assert self.loop.turn()

    def work(self, *requests: int) -> None:
        """Steps the loop until the requests are finished."""
        for _ in range(1000):
            if {message.request for message in self.of(Finished)} >= set(requests):
                return
            self.turn()
        raise AssertionError("the requests do not end")

    def of(self, kind: type) -> list:
        return [message for message in self.sent if isinstance(message, kind)]

    def segments(self, request: int) -> list[Segment]:
        return [one for reported in self.of(Transcribed) if reported.request == request for one in reported.segments]

    def text(self, request: int) -> str:
        return "".join(segment.text for segment in self.segments(request))

    def partials(self, request: int) -> list[PartialText]:
        return [partial for partial in self.of(PartialText) if partial.request == request]

    @property
    def counters(self):
        return self.of(Stepped)[-1].counters
