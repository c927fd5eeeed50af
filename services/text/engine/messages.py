"""What a text service and its worker say to each other."""

from __future__ import annotations

from typing import Literal

import msgspec

from services.text.engine.sampling import SamplingParams

FinishReason = Literal["stop", "length"]


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a model; zero means derived from the model and the machine."""

    model_id: str
    path: str
    threads: int
    gpu: bool
    context_tokens: int
    kv_tokens: int
    max_sequences: int
    batch_tokens: int
    chunk_tokens: int
    prefix_cache: bool


class Load(msgspec.Struct, frozen=True, tag=True):
    """First message to a worker: which runtime, which model."""

    runtime: str
    options: EngineOptions


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A request: the rendered prompt, with the model's special tokens spelled out, or its tokens."""

    request: int
    client: str
    prompt: str | list[int]
    sampling: SamplingParams
    grammar: str = (
        ""  # of llguidance, as JSON or Lark, that the answer follows; stop and ignore_eos have no effect then
    )
    logprobs: int | None = None  # None: none; else the sampled token's and so many of the likeliest
    special: bool = False  # whether control tokens, ends of turn excepted, show in the text


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """The request's caller is gone; its cells are given up before the next step."""

    request: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Ends the worker at once."""


class Loading(msgspec.Struct, frozen=True, tag=True):
    """Progress of loading, 0 to 1."""

    fraction: float


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The model is loaded."""

    context_tokens: int  # most tokens of one request, prompt and answer
    kv_tokens: int  # cells that all requests share
    max_sequences: int
    vocabulary: int
    chat_template: str  # Jinja; empty when the model has none
    bos: str  # text of the beginning-of-sequence token, or empty
    eos: str
    add_bos: bool  # whether the tokenizer puts `bos` in front by itself


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The model could not be loaded; `code` is one of the ten."""

    code: str
    message: str


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """The request's prompt is tokenized and fits."""

    request: int
    prompt_tokens: int


class Refused(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The request cannot run; the worker has forgotten it."""

    request: int
    code: str
    message: str
    param: str | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """How likely the model itself found a token, before bias, penalties, temperature and grammar."""

    piece: bytes  # maybe only part of a character
    logprob: float  # at least -9999
    top: list[tuple[bytes, float]]  # the likeliest tokens, falling; control tokens are spelled out


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """What one step added to one request; `finish` is set on its last piece."""

    request: int
    text: str
    finish: FinishReason | None
    completion_tokens: int
    cached_tokens: int
    logprobs: list[TokenLogprob] | None = None  # where asked for: of the tokens that `text` stands for


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """The runtime's own counters after a step."""

    steps: int
    running: int
    waiting: int
    active_cells: int  # cells of the key-value cache that running requests hold
    cached_cells: int  # cells that only the prefix cache holds
    preempted: int  # how often a request had to give up its cells and start over


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """The end of a step: all pieces that are ready together, and the heartbeat."""

    pieces: list[Piece]
    counters: Counters


ToWorker = Load | Submit | Cancel | Stop
FromWorker = Loading | Ready | Failed | Accepted | Refused | Stepped
