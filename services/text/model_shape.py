"""Sizes from config.json or a GGUF header that determine the memory of a model in addition to its weights.

The keys are those of transformers' configurations (`PreTrainedConfig`), as the supported families name them, and of
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (`[llm].attention.*`, `[llm].ssm.*`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from services.models.formats.document import known_object
from services.models.formats.gguf_header import GgufHeader
from services.residency.memory.memory_estimate import NUMBER_BYTES

HALF = 2  # bytes per number in llama.cpp's KV cache
FLOAT = 4
_FLOAT = 4
_ATTENDING = frozenset({"attention", "full_attention", "sliding_attention"})  # layer types of hybrid models
_RECURRENT = frozenset({"mamba", "linear_attention"})


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
        self._config: Mapping[str, Any] = inner if isinstance(inner, dict) else document
        stored = self._config.get("dtype") or self._config.get("torch_dtype") or document.get("dtype")
        self.stored = NUMBER_BYTES.get(str(stored).removeprefix("torch."), _FLOAT)  # bytes per number in its files
        self.layers = self._number("num_hidden_layers", "n_layers", "n_layer")
        self.width = self._number("hidden_size", "dim", "n_embd")
        self.inner = self._number("intermediate_size", "hidden_dim", "n_inner") or 4 * self.width
        self.vocabulary = self._number("vocab_size")
        self.context_tokens = self._number("max_position_embeddings", "n_positions")

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
        return (inner * size * _FLOAT + inputs * self.stored) * self._count(_RECURRENT, "M")

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
        for name in names:
            value = self._config.get(name)
            if type(value) is int and value > 0:
                return value
        return 0
