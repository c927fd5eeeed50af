"""Sizes from a GGUF header that determine the memory of a model in addition to its weights.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (`[llm].attention.*`, `[llm].ssm.*`).
"""

from __future__ import annotations

from services.models.formats.gguf_header import GgufHeader

HALF = 2  # bytes per number in llama.cpp's KV cache
FLOAT = 4


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
