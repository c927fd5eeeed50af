"""The memory estimate of a text model before it is loaded, from the headers of its files and the settings.

    llama_cpp, chat      weights + cells x cell bytes + sequences x state bytes + compute
                         compute = 512 x cells x 6 (masks of a graph) + 512 x 4 x (8 width + 3 inner)
                         + 256 x vocabulary + 5 x scored x vocabulary
    the same, CPU        + streams x (context x 52 + 16 x cell bytes + layers x 8 KiB) for the cache: records, and freed
                         cells and parts of pages that stay; in compute context in place of cells
    the same, pictures   + 4 x patches x (8 width + 3 inner + heads x patches) of the encoder, and for each sequence the
                         embeddings of one part, 4 x patches x width
    llama_cpp, encoder   weights + batch x 4 x (8 width + 3 inner) + 256 x vocabulary
    torch, chat, CPU     weights as mapped + a second copy without the embedding (joined or converted layers)
                         + pages x cell bytes + states + compute
                         compute = batch x dtype x (10 width + 3 inner)
                         + (the larger of 12 x sequences and 2 x scored, + scored x dtype) x vocabulary
                         + 800 x vocabulary + 32 MiB (allocator, kernels)
    the same, pictures   + patches x dtype x (10 width + 3 inner) of the encoder + pixels x 51
                         + (the smaller of sequences x patches and cells) x dtype x width for embeddings that wait
                         + sequences x pixels x 3 for scaled pictures that wait, at most MOST_PICTURE_BYTES
    the same, vllm       patches and pixels of all tiles, which are encoded together; dtype x 3 for pictures that wait
    vllm, chat           as torch, chat, with vLLM's page size, and of scored prompts the larger of 12 x sequences and
                         4 x its own number of scored tokens, + 128 MiB if it compiles the model
    torch, gpt-oss, GPU  as torch, chat, with the packed size of the weights where the GPU computes with it
    torch, encoder       weights as mapped; in bfloat16 on the CPU + a second copy without the embedding, as for chat
                         + batch x dtype x (6 width + 3 inner) + 800 x vocabulary + 32 MiB

`batch` is the number of tokens per step and `scored` the most prompt tokens in it whose logprobs are asked for
(services/text/engine/token_budget.py), `cells` the KV cells of all requests (services/text/engine/kv_cells.py), `cell
bytes` the size of a token's keys and values in all layers; `width` and `inner` are the hidden and the feed-forward
size. The factors of compute are fitted to the peaks of the demo models,
minus a worker that has only imported its runtime. That worker is `worker`, and its renderer process is `templates`.
On a GPU, weights, cache and compute are in GPU memory and the processes in host memory. tests/memory checks the
estimates against real workers.

The sizes of layers come from config.json or a GGUF header. The keys are those of transformers' configurations
(`PreTrainedConfig`), as the supported families name them, and of
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (`[llm].attention.*`, `[llm].ssm.*`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.errors import AllmError
from services.models.descriptor import ModelDescriptor
from services.models.formats.document import known_object
from services.models.formats.gguf_header import GgufError, GgufHeader, read_header
from services.models.runtimes import RuntimeSpec
from services.residency.memory.memory_estimate import NUMBER_BYTES, TORCH_CONTEXT, MemoryEstimate, gpu_of, share_of
from services.settings.modality_settings import MIB, TextSettings
from services.text.engine.kv_cells import (
    BLOCK,
    STREAM_CELL_BYTES,
    cache_cells,
    context_size,
    has_streams,
    stream_count,
)
from services.text.engine.messages import EngineOptions
from services.text.engine.runtime import MOST_PICTURE_BYTES, kept_states
from services.text.engine.runtimes.vllm.arguments import MOST_SCORED_TOKENS, cache_blocks
from services.text.engine.token_budget import MOST_SCORED, step_tokens
from services.text.picture_inputs import SIDES
from services.worker.processor import has_bfloat16

log = logging.getLogger(__name__)

# Memory of a worker that has imported its runtime, on x86-64.
WORKER_BYTES: Mapping[str, int] = {"llama_cpp": 48 * MIB, "torch": 408 * MIB, "vllm": 580 * MIB}
TEMPLATE_BYTES = 36 * MIB  # the renderer process of a chat model
_MICRO_BATCH = 512
_PAGE = 4096
_ENCODER_TOKENS = 8192
_ENCODER_BATCH = 2048
_KERNELS = 32 * MIB
_COMPILER = 128 * MIB  # torch's compiler, in the worker
_LEAST_CONTEXT = 4096  # tokens: a model that leaves room for less is refused
_USABLE = share_of("a GPU", 0.9)  # of a GPU's memory, as installed
_OTHERS = 480 * MIB  # of a GPU: what its driver takes

_PATCH = 14  # pixels, of encoders that do not state it
_MOST_PIXELS = SIDES["high"] ** 2  # of a picture for encoders without a fixed size
_TILES = {"idefics3": 17, "llava_next": 5, "smolvlm": 17}  # of a picture, by architecture; 1 for others
_PIXEL_BYTES = 3 * (1 + 4 + 4 + 8)  # of three colours, in bytes and as numbers
# Values that published configurations of models that see leave out, because they are transformers' defaults.
_OMITTED: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
    "gemma3_text": {
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
}

Parts = dict[str, int]
Options = Callable[[ModelDescriptor, RuntimeSpec], EngineOptions]
HALF = 2  # bytes per number in 16 bits, such as those of llama.cpp's KV cache
FLOAT = 4
_ATTENDING = frozenset({"attention", "full_attention", "sliding_attention"})  # layer types of hybrid models
_RECURRENT = frozenset({"mamba", "linear_attention"})


class TextMemoryEstimate:
    """Estimates models for one service. `options` returns the manager's engine options of a model."""

    def __init__(self, settings: TextSettings, options: Options) -> None:
        self._settings = settings
        self._options = options

    def __call__(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> MemoryEstimate:
        """Estimates the peak memory of a model. Reads only headers.

        Raises:
            GgufError, OSError, ValueError: a header cannot be read.
        """
        options = self._options(descriptor, runtime)
        writes = not descriptor.capabilities & {"embeddings", "rerank"}
        if descriptor.format == "gguf":
            parts = _gguf(descriptor, options, writes=writes)
        else:
            parts = self._safetensors(descriptor, options, runtime, writes=writes)
        processes = {"worker": WORKER_BYTES.get(runtime.name, WORKER_BYTES["torch"])}
        if writes:
            processes["templates"] = TEMPLATE_BYTES
        if gpu_of(runtime):
            parts["compute"] += TORCH_CONTEXT
        return MemoryEstimate.of(parts, processes, runtime)

    def _safetensors(
        self, descriptor: ModelDescriptor, options: EngineOptions, runtime: RuntimeSpec, *, writes: bool
    ) -> Parts:
        shape = ConfigShape(descriptor.primary)
        if not writes:
            return self._encoder(descriptor, shape, _encoder_bytes(descriptor, options, runtime), gpu=runtime.gpu)
        wanted = NUMBER_BYTES.get(options.dtype, shape.stored)
        weights = (descriptor.unpacked_size or descriptor.size) * wanted // shape.stored
        if _stays_packed(descriptor, options, runtime) and wanted == shape.stored:
            weights = descriptor.size
        if runtime.gpu:
            weights //= options.tensor_parallel * options.pipeline_parallel
        context = context_size(options, shape.context_tokens)
        cells = cache_cells(options, context)
        pages, page = -(-cells // BLOCK) + options.max_sequences + 1, BLOCK
        compiling = 0
        if runtime.name == "vllm":
            pages, page = cache_blocks(options, cells)
            compiling = _COMPILER if options.compiled else 0
        kept = kept_states(options.max_sequences) if shape.state_bytes and options.prefix_cache else 0
        copies = max(0, weights - shape.embedding * wanted) if not runtime.gpu else 0
        if runtime.name == "vllm":
            row = max(12 * options.max_sequences, 4 * MOST_SCORED_TOKENS)
        else:
            row = max(12 * options.max_sequences, 2 * MOST_SCORED) + MOST_SCORED * wanted
        sampled = row * shape.vocabulary
        compute = step_tokens(options) * wanted * (10 * shape.width + 3 * shape.inner) + sampled
        if "vision" in descriptor.capabilities:
            compute += shape.picture_bytes(options.max_sequences, cells, wanted, together=runtime.name == "vllm")
        return {
            "weights": weights + copies,
            "cache": pages * page * shape.cell_numbers * wanted + (options.max_sequences + kept) * shape.state_bytes,
            "compute": compute + compiling + 800 * shape.vocabulary + _KERNELS,
        }

    def _encoder(self, descriptor: ModelDescriptor, shape: ConfigShape, wanted: int, *, gpu: bool) -> Parts:
        """`wanted`: bytes per number."""
        weights = descriptor.size * wanted // shape.stored
        if wanted == HALF and not gpu:
            weights += max(0, weights - shape.embedding * wanted)
        batch = min(_ENCODER_BATCH, self._settings.batch_tokens)
        compute = batch * wanted * (6 * shape.width + 3 * shape.inner) + 800 * shape.vocabulary + _KERNELS
        return {"weights": weights, "compute": compute}


def _encoder_bytes(descriptor: ModelDescriptor, options: EngineOptions, runtime: RuntimeSpec) -> int:
    """Returns the bytes per number of an embedding model or reranker on torch."""
    if options.dtype != "auto":
        return NUMBER_BYTES[options.dtype]
    if runtime.gpu:
        return HALF
    return HALF if has_bfloat16() and "rerank" not in descriptor.capabilities else FLOAT


def fit_cache(
    settings: TextSettings, descriptor: ModelDescriptor, runtime: RuntimeSpec, options: EngineOptions
) -> EngineOptions:
    """Returns the options with a context, and a cache of one context, that let the model fit its GPU.

    The context is halved as often as needed, if nobody has set its size or the cache's, and if halving suffices.
    """
    gpu = gpu_of(runtime)
    if not runtime.gpu_bytes or options.context_tokens or options.kv_tokens:
        return options

    def fits(candidate: EngineOptions) -> bool:
        needed = TextMemoryEstimate(settings, lambda *_: candidate)(descriptor, runtime).devices[gpu]
        return needed <= runtime.gpu_bytes * _USABLE - _OTHERS

    try:
        if fits(options):
            return options
        tokens = context_size(options, descriptor.context_tokens)
        while tokens >= _LEAST_CONTEXT:
            smaller = replace(options, context_tokens=tokens, kv_tokens=tokens)
            if fits(smaller):
                return smaller
            tokens //= 2
    except (AllmError, GgufError, OSError, ValueError) as error:
        log.info("cannot estimate a model's memory", extra={"model": descriptor.id, "reason": str(error)})
    return options


def _stays_packed(descriptor: ModelDescriptor, options: EngineOptions, runtime: RuntimeSpec) -> bool:
    """Returns True if a runtime certainly keeps the 4-bit experts packed; torch expands those of a divided model."""
    return (
        descriptor.quantization == "mxfp4"
        and runtime.packs
        and (runtime.name == "vllm" or options.tensor_parallel == 1)
    )


def _gguf(descriptor: ModelDescriptor, options: EngineOptions, *, writes: bool) -> Parts:
    first = descriptor.primary
    if not first.is_file():
        raise GgufError(f"{first} is not a file")
    shape = GgufShape(read_header(first))
    layer = 4 * (8 * shape.width + 3 * shape.inner)
    if not writes:
        batch = min(shape.context_tokens or _ENCODER_TOKENS, options.context_tokens or _ENCODER_TOKENS)
        return {"weights": descriptor.size, "compute": batch * layer + 256 * shape.vocabulary}
    context = context_size(options, shape.context_tokens)
    cells = seen = cache_cells(options, context)  # `seen`: cells that one token's attention reads
    kept = kept_states(options.max_sequences) if shape.state_bytes and options.prefix_cache else 0
    records = 0
    if has_streams(options, context, recurrent=shape.state_bytes > 0):
        seen = context
        unused = BLOCK * shape.cell_bytes + shape.layers * 2 * _PAGE
        records = stream_count(options) * (context * STREAM_CELL_BYTES + unused)
    compute = _MICRO_BATCH * (6 * seen + layer) + (256 + 5 * MOST_SCORED) * shape.vocabulary
    if descriptor.projector:
        compute += _projector(read_header(descriptor.projector), options.max_sequences * shape.width)
    return {
        "weights": descriptor.size,
        "cache": cells * shape.cell_bytes + records + (options.max_sequences + kept) * shape.state_bytes,
        "compute": compute,
    }


def _projector(header: GgufHeader, waiting: int) -> int:
    """Returns the bytes for encoding pictures. `waiting`: numbers of embeddings that may wait for each patch."""

    def number(name: str) -> int:
        value = header.metadata.get(f"clip.vision.{name}", 0)
        return value if isinstance(value, int) and value > 0 else 0

    patches = (number("image_size") // (number("patch_size") or 1)) ** 2
    width, inner = number("embedding_length"), number("feed_forward_length")
    each = 8 * width + 3 * inner + number("attention.head_count") * patches + waiting
    return FLOAT * patches * each


class GgufShape:
    """Sizes of a model's layers. A missing value counts as zero."""

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self.layers = self._number("block_count")
        self.width = self._number("embedding_length")
        self.inner = self._number("feed_forward_length") or 4 * self.width
        self.vocabulary = header.metadata.get("tokenizer.ggml.tokens", 0) or 0
        self.context_tokens = header.context_length

    @property
    def cell_bytes(self) -> int:
        """Bytes of one KV cell: a token's keys and values in all attention layers."""
        heads = self._number("attention.head_count")
        head = self.width // heads if heads else 0
        one = (self._number("attention.key_length") or head) + (self._number("attention.value_length") or head)
        name = self._name("attention.head_count_kv")
        each = self._header.lists.get(name) or (self._number("attention.head_count_kv") or heads,) * self.layers
        return sum(each) * one * HALF

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent state of one sequence."""
        inner, state = self._number("ssm.inner_size"), self._number("ssm.state_size")
        inputs = (self._number("ssm.conv_kernel") - 1) * (inner + 2 * self._number("ssm.group_count") * state)
        kv = self._header.lists.get(self._name("attention.head_count_kv"), ())
        layers = sum(not heads for heads in kv) if kv else self.layers
        return (inner * state + max(0, inputs)) * FLOAT * layers if inner else 0

    def _name(self, key: str) -> str:
        return f"{self._header.architecture}.{key}"

    def _number(self, key: str) -> int:
        name = self._name(key)
        if name in self._header.lists:
            return max(self._header.lists[name], default=0)
        value = self._header.metadata.get(name, 0)
        return value if isinstance(value, int) and value > 0 else 0


class ConfigShape:
    """Sizes of a model's layers. A missing value counts as zero."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ModelInvalid for an unreadable file."""
        document = known_object(folder / "config.json")
        inner = document.get("text_config")
        self._config: Mapping[str, Any] = document
        if isinstance(inner, dict):
            self._config = dict(_OMITTED.get(str(inner.get("model_type")), {})) | inner
        self._encoder = document.get("vision_config")
        self._tiles = _TILES.get(str(document.get("model_type")), 1)
        stored = self._config.get("dtype") or self._config.get("torch_dtype") or document.get("dtype")
        self.stored = NUMBER_BYTES.get(str(stored).removeprefix("torch."), FLOAT)  # bytes per number in its files
        self.layers = self._number("num_hidden_layers", "n_layers", "n_layer")
        self.width = self._number("hidden_size", "dim", "n_embd")
        self.inner = self._number("intermediate_size", "hidden_dim", "n_inner") or 4 * self.width
        self.vocabulary = self._number("vocab_size")
        self.context_tokens = self._number("max_position_embeddings", "n_positions")

    def picture_bytes(self, sequences: int, cells: int, wanted: int, *, together: bool = False) -> int:
        """Returns the bytes for encoding a picture and for the embeddings of all requests; `wanted`: per number.

        `together`: whether its tiles are encoded together, and wait as numbers and not as bytes.
        """
        encoder = self._encoder if isinstance(self._encoder, dict) else {}
        patch = _positive(encoder, "patch_size") or _PATCH
        pixels = _positive(encoder, "image_size") ** 2 or _MOST_PIXELS
        width = _positive(encoder, "hidden_size", "embed_dim")
        inner = _positive(encoder, "intermediate_size") or 4 * width
        at_once, number = (self._tiles, wanted) if together else (1, 1)
        patches = at_once * pixels // patch**2
        waiting = min(sequences * patches, cells) * self.width
        held = min(MOST_PICTURE_BYTES, 3 * number * pixels * sequences * self._tiles)
        return (patches * (10 * width + 3 * inner) + waiting) * wanted + at_once * pixels * _PIXEL_BYTES + held

    @property
    def embedding(self) -> int:
        """The number of parameters of the token embedding."""
        return self.vocabulary * self.width

    @property
    def cell_numbers(self) -> int:
        """The numbers in one KV cell: a token's keys and values in all attention layers."""
        heads = self._number("num_attention_heads", "n_heads", "n_head")
        head = self._number("head_dim") or (self.width // heads if heads else 0)
        return 2 * (self._number("num_key_value_heads") or heads) * head * self._attending

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent state (Mamba 2) of one sequence."""
        if not (heads := self._number("mamba_num_heads")):
            return 0
        inner, size = heads * self._number("mamba_head_dim"), self._number("ssm_state_size")
        inputs = (inner + 2 * self._number("n_groups") * size) * self._number("conv_kernel")
        return (inner * size * FLOAT + inputs * self.stored) * self._count(_RECURRENT, "M")

    @property
    def _attending(self) -> int:
        return self._count(_ATTENDING, "*") if self._number("mamba_num_heads") else self.layers

    def _count(self, words: Set[str], sign: str) -> int:
        """Counts a hybrid model's layers of one type, given as a list of words or a pattern of signs."""
        listed = self._config.get("layers_block_type") or self._config.get("layer_types")
        if isinstance(listed, list):
            return sum(kind in words for kind in listed if isinstance(kind, str))
        pattern = self._config.get("hybrid_override_pattern")
        return pattern.count(sign) if isinstance(pattern, str) else self.layers

    def _number(self, *names: str) -> int:
        return _positive(self._config, *names)


def _positive(config: Mapping[str, Any], *names: str) -> int:
    """Returns the first of these values that is a positive number; 0 if none is."""
    return next((value for name in names if type(value := config.get(name)) is int and value > 0), 0)
