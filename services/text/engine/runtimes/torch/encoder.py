"""The `torch` runtime for embedding models: a folder of safetensors through transformers' own model definitions.

Inputs are computed in groups of similar length, padded at the end, so that little work is wasted. On a CPU each thread
computes groups of its own: threads that share one wait for each other in every operation, and a thread that went to
sleep meanwhile takes a tenth of a millisecond to wake. With dtype auto, weights and hidden states have 16 bits on a
GPU; on a CPU they are bfloat16 if it has instructions for that, which takes a third of the processor time in batches,
otherwise float32. Pooling and the layers after it are in float32. Shapes of pooling: hidden is [inputs, tokens, size];
lengths is [inputs], the number of an input's tokens without the padding.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from services.text.engine.embedding_loop import Tokens, Vectors
from services.text.engine.messages import EncoderReady, EngineOptions
from services.text.engine.runtimes.torch.executor import rank_device
from services.text.engine.runtimes.torch.recipe import read_recipe
from services.text.engine.runtimes.torch.weights import computes_bfloat16, pack_linears
from services.worker.messages import EngineError
from services.worker.processor import has_bfloat16

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # hidden, lengths -> [inputs, size], float32
BATCH_INPUTS = 1024
DEFAULT_LIMIT = 512  # tokens of an input if the model does not say
_ADOPTED = ("nomic_bert",)  # types whose repositories name their own code, which transformers now includes
_MIXED = ("deberta",)  # types that transformers does not compute in 16 bits: parts of them stay float32
_PLACES = ("max_position_embeddings", "n_positions")
# A group is closed if the next input is shorter than `_ALIKE` times its longest and it has enough tokens (`_WORTH_*`)
# to keep the CPU or GPU busy.
_ALIKE = 0.75
_WORTH_CPU, _WORTH_BFLOAT16, _WORTH_GPU = 64, 256, 4096  # of a CPU in float32, in bfloat16, and of a GPU
_WIDE = 1 << 17  # tokens x hidden size of a group for which threads gain more by sharing it than they lose by waiting


def _own(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Returns the mask of tokens that are not padding: [inputs, tokens, 1], float32."""
    places = torch.arange(hidden.shape[1], device=hidden.device)
    return (places < lengths[:, None]).unsqueeze(-1).float()


def _mean(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return (hidden.float() * _own(hidden, lengths)).sum(1) / lengths[:, None]


def _mean_sqrt_len(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return (hidden.float() * _own(hidden, lengths)).sum(1) / lengths[:, None].float().sqrt()


def _weightedmean(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Weights each token by its position, counted from one."""
    weights = _own(hidden, lengths) * torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[None, :, None]
    return (hidden.float() * weights).sum(1) / weights.sum(1)


def _max(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return hidden.float().masked_fill(_own(hidden, lengths) == 0, -torch.inf).amax(1)


def _cls(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return hidden[:, 0].float()


def _last(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1].float()


# The names are those of `recipe.POOLINGS`.
POOLS: dict[str, Pool] = {
    "mean": _mean,
    "cls": _cls,
    "last": _last,
    "max": _max,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weightedmean,
}


class TorchEncoder:
    """An embedding model in torch. Only `tokenize` is thread-safe."""

    batch_inputs = BATCH_INPUTS
    exact = False  # whether a CPU computes in float32 with dtype auto, even if it has instructions for bfloat16

    def __init__(self, options: EngineOptions, progress: Callable[[float], None]) -> None:
        """Loads the model. Its own code is never run.

        Raises:
            EngineError: UNSUPPORTED for an unknown architecture or step, MODEL_INVALID for files that cannot be read or
                lack weights; the message names them.
        """
        notes: Any = transformers_logging  # it has no types
        notes.set_verbosity_error()
        notes.disable_progress_bar()
        torch.set_num_threads(options.threads)
        self._device = rank_device(options, 0)
        self._threads = options.threads if self._device.type == "cpu" else 1
        self._alone = ThreadPoolExecutor(self._threads, "encode", torch.set_num_threads, (1,))
        folder = Path(options.path)
        config = _config(folder)
        self._decodes = is_decoder(config)
        self._size = getattr(config.get_text_config(), "hidden_size", 1024)
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        self._padding = self._tokenizer.pad_token_id or 0
        precision = self._precision(options, config)
        self._model, most = self._open(folder, config, precision)
        progress(1.0)
        limit = _limit(self._model.base_model, most, self._tokenizer)
        on_cpu = _WORTH_BFLOAT16 if precision == torch.bfloat16 else _WORTH_CPU
        self._worth = on_cpu if self._device.type == "cpu" else _WORTH_GPU
        vocabulary = self._model.get_input_embeddings().num_embeddings
        # The first vector pays for page faults and allocations, and gives the length of vectors.
        dimensions = self._compute([np.zeros(min(limit, 8), np.int32) + self._any_token()]).shape[1]
        self.ready = EncoderReady(
            context_tokens=min(limit, options.context_tokens or limit), dimensions=dimensions, vocabulary=vocabulary
        )

    def _precision(self, options: EngineOptions, config: PreTrainedConfig) -> torch.dtype:
        if options.dtype != "auto":
            asked: torch.dtype = getattr(torch, options.dtype)
            return asked
        if config.model_type in _MIXED:
            return torch.float32
        if self._device.type == "cpu":
            rounded = has_bfloat16() and computes_bfloat16() and not self.exact
            return torch.bfloat16 if rounded else torch.float32
        return torch.bfloat16 if getattr(config, "dtype", None) == torch.bfloat16 else torch.float16

    def _open(self, folder: Path, config: PreTrainedConfig, precision: torch.dtype) -> tuple[Any, int]:
        """Loads the model. Returns it with the limit of an input that the publishers set, or 0. Raises EngineError."""
        recipe = self._recipe = read_recipe(folder, decoder=self._decodes)
        self._pool = POOLS[recipe.pooling]
        model = load(folder, config, AutoModel, precision, self._device)
        pack_linears(model)
        self._layers = [_linear(layer.weights, layer.activation, self._device) for layer in recipe.layers]
        self.normalised = recipe.normalised
        return model, recipe.max_tokens

    def tokenize(self, text: str) -> Tokens:
        """Returns the token ids of an input, with the special tokens around it."""
        found = self._tokenizer(text.lower() if self._recipe.lower else text, truncation=False, verbose=False)
        return np.array(found["input_ids"], np.int32)

    def encode(self, inputs: Sequence[Tokens]) -> Vectors:
        """Returns the pooled vectors [inputs, dimensions]."""
        vectors = np.empty((len(inputs), self.ready.dimensions), np.float32)
        groups = list(self._groups(inputs))
        most = max(len(inputs[group[0]]) * len(group) for group in groups)
        shared = len(groups) < self._threads and most * self._size >= _WIDE
        each = map if shared or self._device.type != "cpu" else self._alone.map
        computed = each(self._compute, [[inputs[index] for index in group] for group in groups])
        for group, found in zip(groups, computed, strict=True):
            vectors[group] = found
        return vectors

    def _groups(self, inputs: Sequence[Tokens]) -> Iterator[list[int]]:
        """Yields the indexes of inputs to compute together, longest first; for several threads at least two for each,
        if there are enough tokens.
        """
        group: list[int] = []
        share = math.inf if self._threads == 1 else sum(map(len, inputs)) / (2 * self._threads)
        for index in sorted(range(len(inputs)), key=lambda index: -len(inputs[index])):
            longest = len(inputs[group[0]]) if group else 0
            size, alike = longest * len(group), len(inputs[index]) >= longest * _ALIKE
            if size >= self._worth and (size >= share or not alike):
                yield group
                group = []
            group.append(index)
        if group:
            yield group

    @torch.inference_mode()
    def _compute(self, inputs: Sequence[Tokens]) -> Vectors:
        """Computes the vectors [inputs, dimensions] of one group."""
        lengths = torch.tensor([len(tokens) for tokens in inputs])
        width = int(lengths.max())
        mask = None  # attention needs none if nothing is padded
        if int(lengths.min()) < width:
            mask = (torch.arange(width) < lengths[:, None]).long().to(self._device)
        more: dict[str, Any] = {"use_cache": False} if self._decodes else {}
        more["input_ids"] = self._padded([tokens if tokens.ndim == 1 else tokens[:, 0] for tokens in inputs], width)
        vectors = self._vectors(inputs, lengths.to(self._device), attention_mask=mask, **more)
        pooled: Vectors = vectors.float().cpu().numpy()
        return pooled

    def _vectors(self, inputs: Sequence[Tokens], lengths: torch.Tensor, **given: Any) -> torch.Tensor:
        """Computes the vectors [inputs, dimensions]; `given`: the arguments of the model."""
        vectors = self._pool(self._model(**given).last_hidden_state, lengths)
        for layer in self._layers:
            vectors = layer(vectors)
        return vectors

    def _padded(self, rows: Sequence[Tokens], width: int, padding: int | None = None) -> torch.Tensor:
        """Returns the rows as one tensor [rows, width], padded at the end."""
        padded = torch.full((len(rows), width), self._padding if padding is None else padding)
        for row, numbers in enumerate(rows):
            padded[row, : len(numbers)] = torch.from_numpy(numbers)
        return padded.to(self._device)

    def _any_token(self) -> int:
        """Returns a token that is not padding, because some models compute positions from padding."""
        return next(token for token in range(2, 8) if token != self._padding)


def _config(folder: Path) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError) as error:
        raise EngineError("UNSUPPORTED", f"transformers does not know this model: {str(error)[:300]}") from error
    except OSError as error:
        raise EngineError("MODEL_INVALID", f"config.json cannot be read: {str(error)[:300]}") from error
    own = getattr(config, "auto_map", None) or {}
    if "AutoModel" in own and config.model_type not in _ADOPTED:
        message = f"the model needs code of its own ({own['AutoModel']}), which is never run"
        raise EngineError("UNSUPPORTED", message)
    return config


def is_decoder(config: PreTrainedConfig) -> bool:
    """Returns True if the architecture is a decoder, which has a key-value cache."""
    return hasattr(config, "num_key_value_heads") and getattr(config, "model_type", "") != "eurobert"


def load(
    folder: Path, config: PreTrainedConfig, auto: Any, precision: torch.dtype, device: torch.device
) -> PreTrainedModel:
    """Loads the weights into the class that `auto`, such as AutoModel, has for a configuration. Raises EngineError."""
    kind: Any = auto._model_mapping.get(type(config), None)
    if kind is None:
        raise EngineError("UNSUPPORTED", f"transformers has no model for {config.model_type!r}")
    more: dict[str, Any] = {}
    if "add_pooling_layer" in inspect.signature(kind.__init__).parameters:
        more["add_pooling_layer"] = False
    # A decoder with bidirectional attention gets no mask if nothing is padded, and sdpa treats that as causal.
    both_ways = getattr(config, "is_causal", True) is False
    try:
        model, report = kind.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            dtype=precision,
            attn_implementation="sdpa" if kind._supports_sdpa and not both_ways else "eager",
            output_loading_info=True,
            **more,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise EngineError("MODEL_INVALID", f"its weights cannot be loaded: {str(error)[:500]}") from error
    lacking = sorted(str(name) for name in (*report["missing_keys"], *report["mismatched_keys"]))
    if lacking:
        first = ", ".join(lacking[:3])
        raise EngineError("MODEL_INVALID", f"{len(lacking)} tensors of the model are missing or misshapen: {first}")
    loaded: PreTrainedModel = model.to(device).eval()
    return loaded


def _linear(weights: Path, activation: str, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a layer after pooling, in float32."""
    try:
        tensors = load_file(weights, device=str(device))
        weight, bias = tensors["linear.weight"].float(), tensors.get("linear.bias")
    except (OSError, KeyError, ValueError) as error:
        raise EngineError("MODEL_INVALID", f"{weights.parent.name}/{weights.name} cannot be read: {error}") from error
    after = torch.tanh if activation == "tanh" else torch.nn.Identity()

    def layer(vectors: torch.Tensor) -> torch.Tensor:
        return after(torch.nn.functional.linear(vectors, weight, None if bias is None else bias.float()))

    return layer


def _limit(model: Any, most: int, tokenizer: Any) -> int:
    """Returns the maximum tokens of an input: the minimum of all limits that the model names."""
    values = [getattr(model.config, name, None) for name in _PLACES]
    places = next((value for value in values if isinstance(value, int)), 0)
    # RoBERTa and its descendants number positions from `padding_idx + 1`, so fewer tokens fit.
    padding = getattr(getattr(model, "embeddings", None), "padding_idx", None)
    if places and padding is not None:
        places -= padding + 1
    limits = [limit for limit in (places, most, tokenizer.model_max_length) if limit > 0]
    return min(limits) if limits else DEFAULT_LIMIT
