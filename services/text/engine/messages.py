"""What a text service and its worker say to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from services.text.engine.sampling import SamplingParams
from services.worker.messages import Cancel, Failed, Loading, Phase, Refused, Stop

FinishReason = Literal["stop", "length"]
Capability = Literal["chat", "embeddings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
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
    queue_tokens: int = 0  # of prompts that may wait together; 0: derived
    dtype: str = "auto"  # auto, bfloat16, float16 or float32: precision of a runtime that can choose
    tensor_parallel: int = 1  # GPUs, or processes on a CPU, that compute a model together
    pipeline_parallel: int = 1  # parts of it one after the other, each on so many GPUs: with vllm alone
    compiled: bool = True  # whether a runtime that can compiles the model
    ray_address: str = ""  # the Ray cluster that vllm computes on: auto, or host:port; empty: none


@dataclass(frozen=True, slots=True)
class Load:
    """First message to a worker: which runtime, which model."""

    runtime: str
    options: EngineOptions
    capability: Capability = "chat"  # what it is loaded for


@dataclass(frozen=True, slots=True)
class Submit:
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
    cache_key: str = ""  # what the client calls the session whose prefix is to be kept for its next request, or empty
    deadline: float | None = None  # on the monotonic clock: then nobody waits any more


@dataclass(frozen=True, slots=True)
class Hold:
    """The request's caller does not read: it keeps what it has and computes nothing more, until it is let go."""

    request: int
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """A request for embeddings: one for each of the inputs, which are texts or tokens."""

    request: int
    client: str
    inputs: list[str | list[int]]
    dimensions: int = 0  # numbers of a vector that are wanted, from its beginning; 0: all
    param: str = "input[]"  # what the caller calls an input; `[]` stands for its index
    deadline: float | None = None  # on the monotonic clock: then nobody waits any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The model is loaded."""

    context_tokens: int  # most tokens of one request, prompt and answer
    kv_tokens: int  # cells that all requests share
    max_sequences: int
    vocabulary: int
    chat_template: str  # Jinja; empty when the model has none
    bos: str  # text of the beginning-of-sequence token, or empty
    eos: str
    add_bos: bool  # whether the tokenizer puts `bos` in front by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderReady:
    """The embedding model is loaded."""

    context_tokens: int  # most tokens of one input
    dimensions: int  # numbers of a vector
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request's prompt is tokenized and fits."""

    request: int
    prompt_tokens: int
    prompt: str = ""  # the text of a prompt that came as tokens


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model itself found a token, before bias, penalties, temperature and grammar."""

    piece: bytes  # maybe only part of a character
    logprob: float  # at least -9999
    top: list[tuple[bytes, float]]  # the likeliest tokens, falling; control tokens are spelled out


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to one request; `finish` is set on its last piece."""

    request: int
    text: str
    finish: FinishReason | None
    completion_tokens: int
    cached_tokens: int
    logprobs: list[TokenLogprob] | None = None  # where asked for: of the tokens that `text` stands for


@dataclass(frozen=True, slots=True)
class Counters:
    """The runtime's own counters after a step."""

    steps: int
    running: int
    waiting: int
    active_cells: int  # cells of the key-value cache that running requests hold
    cached_cells: int  # cells that only the prefix cache holds
    preempted: int  # how often a request had to give up its cells and start over
    batch: int = 0  # sequences or inputs of the last step
    batch_tokens: int = 0  # tokens that it computed


@dataclass(frozen=True, slots=True)
class Stepped:
    """The end of a step: all pieces that are ready together, and the heartbeat."""

    pieces: list[Piece]
    counters: Counters
    phases: list[Phase] = field(default_factory=list)  # `queue`, `prefill` or `decode`, that requests have entered


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vector of one input: float32, little-endian."""

    request: int
    index: int  # of the input
    vector: bytes


@dataclass(frozen=True, slots=True)
class Encoded:
    """The end of a batch of inputs: their vectors, and the heartbeat."""

    vectors: list[Embedded]
    counters: Counters
    phases: list[Phase] = field(default_factory=list)  # `embed`, of requests whose first input was in the batch


ToWorker = Load | Submit | Hold | Embed | Cancel | Stop
FromWorker = Loading | Ready | EncoderReady | Failed | Accepted | Refused | Stepped | Encoded
