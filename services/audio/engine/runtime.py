"""The interface of a runtime to the batch loop: encode windows, decode them, align text with sound.

A runtime works on mel spectrograms, token ids and its own handles of encoded windows; it knows no request, file or
segment. At most `lanes` threads call its methods at the same time; any thread may use its vocabulary. `in_groups` and
`padded_parts` split a batch into parts that a library can compute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from services.audio.engine.messages import EngineOptions, WhisperReady

Floats = npt.NDArray[np.float32]
Encoded = Any  # one encoded window: a runtime's own handle, which owns its memory

WINDOW_SAMPLES = 480_000  # 30 s
WINDOW_FRAMES = 3000  # columns of a window's mel spectrogram
TOKEN_SECONDS = 0.02  # per timestamp token, and per time index of an alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Options for decoding a batch of windows."""

    temperature: float  # 0: beam search, else sampling
    beam_size: int  # at temperature 0; 1 is greedy
    best_of: int  # samples above temperature 0; the likeliest is taken
    max_tokens: int  # most tokens that are decoded after the prompt
    timestamps: bool = True  # apply the rules of timestamp tokens; else the prompts end with no_timestamps
    max_initial_timestamp: float = 1.0  # seconds
    seed: int = 0  # of the samples


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of decoding a window."""

    tokens: list[int]  # text and timestamps, without the prompt and the end
    avg_logprob: float  # sum of logprobs / (tokens + 1): the end token counts, as in the reference
    no_speech_prob: float


@dataclass(frozen=True, slots=True)
class Aligned:
    """The positions of a text's tokens in a window's sound."""

    text_indices: npt.NDArray[np.int64]  # [path] index in the text, or of the end of text after it
    time_indices: npt.NDArray[np.int64]  # [path] rising, in steps of TOKEN_SECONDS
    probabilities: Floats  # [text tokens] how likely each was, at temperature 1


class Vocabulary(Protocol):
    """A converter of text to tokens and back. Any thread may use it."""

    multilingual: bool
    languages: Sequence[str]  # codes
    sot: int
    eot: int  # smaller ids are text, greater ones are special
    sot_prev: int
    no_speech: int
    no_timestamps: int
    timestamp_begin: int  # this and greater ids are timestamps

    def start(self, language: str, task: str) -> list[int]:
        """Returns the start of transcript: [sot], and, if multilingual, the language and the task."""

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text; names of special tokens in it are plain text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens; special tokens and timestamps add nothing."""

    def piece(self, token: int) -> bytes:
        """Returns the bytes of one text token, which may be only part of a character."""

    def split_words(self, tokens: Sequence[int], language: str) -> tuple[list[str], list[list[int]]]:
        """Returns the words of text tokens, and the tokens of each, split as in the reference."""


class Runtime(Protocol):
    """A loaded model. Its methods raise EngineError (OUT_OF_MEMORY, INTERNAL) for a batch that cannot be computed."""

    ready: WhisperReady
    n_mels: int  # 80 or 128
    context_tokens: int  # of prompt and text together (Whisper: 448)
    shortest_frames: int  # least columns that `encode` takes; WINDOW_FRAMES if it takes only whole windows
    lanes: int  # parallel calls, each as fast as if it were alone
    encode_windows: int  # windows worth encoding together: 1 on a CPU, where more are no faster
    vocabulary: Vocabulary

    def encode(self, mels: Floats) -> list[Encoded]:
        """Returns handles of windows, one for each of `mels` [windows, n_mels, frames].

        `frames` is from `shortest_frames` to WINDOW_FRAMES. Windows with equal `frames` are decoded together.
        Windows that were encoded together are decoded together at no further cost; others may be joined, too.
        """

    def detect(self, windows: Sequence[Encoded]) -> list[tuple[str, float]]:
        """Returns the likeliest language of each window and its probability. Only if `ready.multilingual`."""

    def decode(self, windows: Sequence[Encoded], prompts: Sequence[Sequence[int]], step: Step) -> list[Decoded]:
        """Decodes windows together.

        `prompts` are whole: [sot_prev, text before], the start of transcript, [no_timestamps]. They may differ in
        length, language and task: a runtime that cannot batch them groups them itself.
        """

    def align(
        self,
        windows: Sequence[Encoded],
        starts: Sequence[Sequence[int]],
        texts: Sequence[Sequence[int]],
        frames: Sequence[int],
    ) -> list[Aligned]:
        """Returns the positions of each window's text tokens in its sound.

        `starts` are starts of transcripts, `texts` hold only text tokens (none is empty), `frames` are the columns of
        each mel spectrogram that are sound and not padding.
        """


Loader = Callable[[EngineOptions, Callable[[float], None]], Runtime]


Result = TypeVar("Result")


def in_groups(
    shapes: Iterable[Hashable],
    compute: Callable[[list[int]], Iterable[Result]],
    parts: Callable[[list[int]], Iterable[list[int]]] = lambda indexes: (indexes,),
) -> list[Result]:
    """Computes a result for each of `shapes`, in their order. `compute` gets the indexes of equal shapes, split by
    `parts`, and returns a result for each index.
    """
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, shape in enumerate(shapes):
        groups[shape].append(index)
    results: dict[int, Result] = {}
    for indexes in groups.values():
        for part in parts(indexes):
            results.update(zip(part, compute(part), strict=True))
    return [results[index] for index in range(len(results))]


def padded_parts(indexes: Iterable[int], lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yields the indexes in parts. The rows of a part, padded to its longest one, have at most `most` columns together;
    a longer row is alone. `lengths` are those of all rows.
    """
    part: list[int] = []
    for index in sorted(indexes, key=lambda index: lengths[index]):
        if part and (len(part) + 1) * lengths[index] > most:
            yield part
            part = []
        part.append(index)
    if part:
        yield part
