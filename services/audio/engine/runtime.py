"""What a runtime must do so that the batch loop can drive it: encode windows, decode them, align text with sound.

A runtime knows mel spectrograms, token ids and its own handles of encoded windows; it knows no request, no file and no
segment. Its methods are called from as many threads at the same time as it has `lanes`; its vocabulary from any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from services.audio.engine.messages import EngineOptions, Ready

Floats = npt.NDArray[np.float32]
Encoded = Any  # one encoded window: a runtime's own handle; what it holds is freed with it

WINDOW_SAMPLES = 480_000  # 30 s
WINDOW_FRAMES = 3000  # columns of a window's mel spectrogram
TOKEN_SECONDS = 0.02  # of one timestamp token, and of one time index of an alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How to decode a batch of windows."""

    temperature: float  # 0: beam search, else sampling
    beam_size: int  # at temperature 0; 1 is greedy
    best_of: int  # samples above temperature 0, of which the likeliest is taken
    max_tokens: int  # that are decoded after the prompt at the most
    timestamps: bool = True  # whether the rules of timestamp tokens hold; the prompts say no_timestamps else
    max_initial_timestamp: float = 1.0  # seconds
    seed: int = 0  # of the samples


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a window was decoded to."""

    tokens: list[int]  # text and timestamps, without the prompt and the end
    avg_logprob: float  # sum of logprobs / (tokens + 1): the end counts, as in the reference
    no_speech_prob: float


@dataclass(frozen=True, slots=True)
class Aligned:
    """Where the tokens of a text are in a window's sound."""

    text_indices: npt.NDArray[np.int64]  # [path] index in the text and the end of text behind it
    time_indices: npt.NDArray[np.int64]  # [path] rising, in steps of TOKEN_SECONDS
    probabilities: Floats  # [text tokens] how likely each was, at temperature 1


class Vocabulary(Protocol):
    """Text to tokens and back. May be used from any thread."""

    multilingual: bool
    languages: Sequence[str]  # codes
    sot: int
    eot: int  # smaller ids are text, greater ones are special
    sot_prev: int
    no_speech: int
    no_timestamps: int
    timestamp_begin: int  # this and greater ids are timestamps

    def start(self, language: str, task: str) -> list[int]:
        """The start of transcript: [sot], and, where multilingual, the language and the task."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; special tokens that are spelled out are plain text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens; special tokens and timestamps add nothing."""

    def piece(self, token: int) -> bytes:
        """The bytes of one text token, maybe only part of a character."""

    def split_words(self, tokens: Sequence[int], language: str) -> tuple[list[str], list[list[int]]]:
        """Words of text tokens, and the tokens of each, as the reference splits them."""


class Runtime(Protocol):
    """A loaded model. Its methods raise EngineError (OUT_OF_MEMORY, INTERNAL) for a batch that cannot be computed."""

    ready: Ready
    n_mels: int  # 80 or 128
    context_tokens: int  # of prompt and text together (Whisper: 448)
    shortest_frames: int  # columns that `encode` needs; WINDOW_FRAMES where it takes only whole windows
    lanes: int  # calls that it computes at the same time, each as fast as if it were alone
    encode_windows: int  # windows that are worth encoding together: 1 on a CPU, where more are no faster
    vocabulary: Vocabulary

    def encode(self, mels: Floats) -> list[Encoded]:
        """Handles of windows, one for each of `mels` [windows, n_mels, frames].

        `frames` is WINDOW_FRAMES, or less, but at least `shortest_frames`. Windows of as many are decoded together.
        Windows that were encoded together are decoded together at no further cost; others may be joined, too.
        """

    def detect(self, windows: Sequence[Encoded]) -> list[tuple[str, float]]:
        """The likeliest language of each window, and its probability. Only where `ready.multilingual`."""

    def decode(self, windows: Sequence[Encoded], prompts: Sequence[Sequence[int]], step: Step) -> list[Decoded]:
        """Decodes windows together.

        `prompts` are whole: [sot_prev, text before], the start of transcript, [no_timestamps]. They may differ in
        length, language and task: a runtime that cannot batch such groups them by itself.
        """

    def align(
        self,
        windows: Sequence[Encoded],
        starts: Sequence[Sequence[int]],
        texts: Sequence[Sequence[int]],
        frames: Sequence[int],
    ) -> list[Aligned]:
        """Where each window's text tokens are in its sound.

        `starts` are starts of transcripts, `texts` hold only text tokens (none empty), `frames` are how many columns
        of the mel spectrogram are sound and not padding.
        """


Loader = Callable[[EngineOptions, Callable[[float], None]], Runtime]
