"""The messages between a text service and its worker."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from services.text.engine.sampling import SamplingParams
from services.worker.messages import Cancel, LoadFailed, Loading, Phase, RequestRefused, Stop

USUAL_BYTES = 16  # per token; few texts have more
MAX_EMBEDDED_TOKENS = 300_000  # of all inputs of a request
# An input of up to so many bytes is always tokenized: white space and single long words have few tokens.
LEAST_INPUT_BYTES = 64 * 1024

FinishReason = Literal["stop", "length"]
Capability = Literal["chat", "embeddings", "rerank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options for running a model. Zero means derived from the model and the machine."""

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
    queue_tokens: int = 0  # of all waiting prompts together; 0: derived
    dtype: str = "auto"  # auto, bfloat16, float16 or float32; for runtimes that can choose
    tensor_parallel: int = 1  # GPUs, or processes on a CPU, that share each layer of a model
    pipeline_parallel: int = 1  # consecutive parts of the model, each on `tensor_parallel` GPUs; vllm only
    compiled: bool = True  # whether the model is compiled, if the runtime can
    ray_address: str = ""  # the Ray cluster of vllm: auto, or host:port; empty: none
    speculation: str = "off"  # off, or ngram: guesses from tokens of the request and its client
    projector: str = ""  # path of the GGUF file that encodes pictures for the model; empty: none
    device: str = ""  # the kind of the GPU: cuda, vulkan or mps; empty: the runtime's choice


@dataclass(frozen=True, slots=True)
class Load:
    """The first message to a worker: the runtime and the model to load."""

    runtime: str
    options: EngineOptions
    capability: Capability = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """A decoded picture, upright, without transparency."""

    width: int
    height: int
    pixels: bytes  # rows of RGB uint8, `height * width * 3` bytes
    detail: Literal["auto", "low", "high"] = "auto"
    param: str = ""  # the caller's name of it, for errors

    @property
    def digest(self) -> bytes:
        """Identifies what the model sees: 16 bytes."""
        head = f"{self.width}x{self.height} {self.detail} ".encode()
        return hashlib.blake2b(head + self.pixels, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Submit:
    """A request: the rendered prompt, with the model's special tokens spelled out, or its tokens."""

    request: int
    client: str
    prompt: str | list[int]
    sampling: SamplingParams
    grammar: str = ""  # llguidance grammar of the answer, as JSON or Lark; turns stop and ignore_eos off
    logprobs: int | None = None  # of the sampled token and this many most likely ones; None: none
    special: bool = False  # whether control tokens, ends of turn excepted, show in the text
    cache_key: str = ""  # the client's name for the session whose prefix is kept for its next request, or empty
    deadline: float | None = None  # on the monotonic clock; the caller has given up by then
    suffix: str = ""  # the text after a gap that the answer fills; empty: the answer continues the prompt
    prediction: str = ""  # the answer that the caller expects, which may make it faster; empty: none
    scored: bool = False  # whether `logprobs`, which is then no None, is also for the tokens of the prompt
    # Whether a prompt that leaves no room for max_tokens is refused; otherwise the answer ends with the context.
    room_required: bool = True
    pictures: tuple[Pixels, ...] = ()  # in the order of the prompt; only with a prompt of text
    mark: str = ""  # the text that stands in the prompt for each picture


@dataclass(frozen=True, slots=True)
class Hold:
    """Pauses a request whose caller does not read, or resumes it. A held request computes nothing."""

    request: int
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """A request for embeddings, one per input. Inputs are texts or tokens."""

    request: int
    client: str
    inputs: list[str | list[int]]
    dimensions: int = 0  # length to which vectors are cut; 0: full length
    param: str = "input[]"  # the caller's name of an input; `[]` stands for its index
    truncate: bool = False  # whether a text that is too long is cut at its end; otherwise it is refused
    deadline: float | None = None  # on the monotonic clock; the caller has given up by then


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A request for the relevance of documents to a query, or of each document to its own query."""

    request: int
    client: str
    queries: list[str]  # one for all documents, or one per document
    documents: list[str]
    document_tokens: int = 0  # length to which documents are cut, in tokens; 0: a pair that is too long is refused
    query_param: str = "query"  # the caller's names; `[]` stands for the index
    param: str = "documents[]"
    deadline: float | None = None  # on the monotonic clock; the caller has given up by then


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderReady:
    """The model is loaded."""

    context_tokens: int  # maximum tokens of one request, prompt and answer
    kv_tokens: int  # KV cells that all requests share
    max_sequences: int
    vocabulary: int
    chat_template: str  # Jinja; empty when the model has none
    bos: str  # text of the beginning-of-sequence token, or empty
    eos: str
    add_bos: bool  # whether the tokenizer itself prepends `bos`
    # The model's tokens before the prompt, before the suffix and before the text that fills the gap between them.
    infill: tuple[int, int, int] | None = None
    sees: bool = False  # whether a prompt may have pictures
    picture_margins: tuple[str, str] = ("", "")  # texts before and after each picture, as part of the prompt's text


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderReady:
    """The embedding model or reranker is loaded."""

    context_tokens: int  # maximum tokens of one input; of a reranker: of a query and a document together
    dimensions: int  # length of a vector; of a reranker: 1
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request's prompt is tokenized and fits."""

    request: int
    prompt_tokens: int
    prompt: str = ""  # the text of all tokens, if the prompt was sent as tokens or is scored


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The model's own log probability of a token, before bias, penalties, temperature and grammar."""

    piece: bytes  # may be only part of a character
    logprob: float  # at least -9999
    top: list[tuple[bytes, float]]  # the most likely tokens in descending order; control tokens by name


@dataclass(frozen=True, slots=True)
class Piece:
    """The output of one step for one request. `finish` is set on its last piece."""

    request: int
    text: str
    finish: FinishReason | None
    completion_tokens: int
    cached_tokens: int
    logprobs: list[TokenLogprob] | None = None  # if requested: of the tokens in `text`
    accepted_tokens: int = 0  # of the completion tokens: those that were guessed before (speculation.py)
    rejected_tokens: int = 0  # guesses that were wrong; no part of the completion tokens
    # Of a scored prompt: the next tokens with their logprobs. That of the very first, which follows nothing, is 0.
    prompt_logprobs: list[TokenLogprob] | None = None
    stop: str = ""  # the stop string that ended the answer, if one did


@dataclass(frozen=True, slots=True)
class Counters:
    """The runtime's own counters after a step."""

    steps: int
    running: int
    waiting: int
    active_cells: int  # cells of the key-value cache that running requests hold
    cached_cells: int  # cells that only the prefix cache holds
    preempted: int  # number of times that a request lost its cells and started over
    batch: int = 0  # sequences or inputs of the last step
    batch_tokens: int = 0  # tokens of the last step
    drafted: int = 0  # guesses that steps have computed
    accepted: int = 0  # guesses that were right


@dataclass(frozen=True, slots=True)
class Stepped:
    """The end of a step: all pieces that are ready. Also the heartbeat."""

    pieces: list[Piece]
    counters: Counters
    phases: list[Phase] = field(default_factory=list)  # `queue`, `prefill` or `decode`, entered by requests


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vector of one input, or the relevance of one document: float32, little-endian."""

    request: int
    index: int  # of the input
    vector: bytes


@dataclass(frozen=True, slots=True)
class Encoded:
    """The end of a batch of inputs: their vectors. Also the heartbeat."""

    vectors: list[Embedded]
    counters: Counters
    phases: list[Phase] = field(default_factory=list)  # `embed`, of requests whose first input was in the batch


ToWorker = Load | Submit | Hold | Embed | Rank | Cancel | Stop
FromWorker = Loading | DecoderReady | EncoderReady | LoadFailed | Accepted | RequestRefused | Stepped | Encoded
