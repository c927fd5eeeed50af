"""Small GLM-4, Nemotron-H and Qwen2-VL models as GGUF, with random weights, for llama.cpp's support of them."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

from tests.text.families.small_tokenizer import write_tokenizer
from tests.verification.family_words import (
    GLM_TEMPLATE,
    GLM_TOKENS,
    NEMOTRON_TEMPLATE,
    NEMOTRON_TOKENS,
    give_words,
)

WIDTH, HEADS, KV_HEADS, HIDDEN, CONTEXT = 128, 4, 2, 256, 1024
STATE, GROUPS, KERNEL, INNER, SSM_HEADS = 16, 2, 4, 256, 4  # of a Mamba-2 layer
AXES = (4, 6, 6)  # halves of a head's numbers that rotate with the time, the row and the column of a token
NEMOTRON_LAYERS = "M-M*-"  # Mamba-2, feed-forward and attention, in NVIDIA's letters
NORMAL, CONTROL = 1, 3


class _Writer:
    """A writer of a GGUF file; matrices are [out, in]."""

    def __init__(self, path: Path, architecture: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.gguf = gguf.GGUFWriter(path, architecture)
        self._random = np.random.default_rng(7)

    def matrix(self, name: str, out: int, inner: int) -> None:
        values = self._random.standard_normal((out, inner)) * 1.2 / inner**0.5
        self.gguf.add_tensor(f"{name}.weight", values.astype(np.float32))

    def ones(self, name: str, *shape: int) -> None:
        values = 1 + 0.1 * self._random.standard_normal(shape)
        self.gguf.add_tensor(f"{name}.weight", values.astype(np.float32))

    def plain(self, name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
        self.gguf.add_tensor(name, values.astype(np.float32))

    def attention(self, block: str) -> None:
        head = WIDTH // HEADS
        self.matrix(f"{block}.attn_q", WIDTH, WIDTH)
        self.matrix(f"{block}.attn_k", KV_HEADS * head, WIDTH)
        self.matrix(f"{block}.attn_v", KV_HEADS * head, WIDTH)
        self.matrix(f"{block}.attn_output", WIDTH, WIDTH)

    def close(self, words: Path, eos: str) -> None:
        """Adds the embeddings and the tokenizer, and writes the file."""
        size = _add_words(self.gguf, words, eos)
        self.matrix("token_embd", size, WIDTH)
        self.matrix("output", size, WIDTH)
        self.ones("output_norm", WIDTH)
        self.write()

    def write(self) -> None:
        """Writes the file."""
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def write_glm4(folder: Path) -> Path:
    """Writes a GLM-4 model of three layers."""
    writer = _Writer(folder / "glm4.gguf", "glm4")
    _add_shape(writer.gguf, layers=3)
    writer.gguf.add_head_count_kv(KV_HEADS)
    writer.gguf.add_feed_forward_length(HIDDEN)
    writer.gguf.add_rope_dimension_count(WIDTH // HEADS // 2)
    for layer in range(3):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            writer.ones(f"{block}.{norm}", WIDTH)
        writer.attention(block)
        writer.matrix(f"{block}.ffn_up", 2 * HIDDEN, WIDTH)
        writer.matrix(f"{block}.ffn_down", WIDTH, HIDDEN)
    give_words(_words(folder), GLM_TOKENS, GLM_TEMPLATE, "<|endoftext|>")
    writer.close(_words(folder), "<|endoftext|>")
    return folder / "glm4.gguf"


def write_nemotron_h(folder: Path) -> Path:
    """Writes a Nemotron-H model with the layers in NEMOTRON_LAYERS."""
    writer = _Writer(folder / "nemotron-h.gguf", "nemotron_h")
    _add_shape(writer.gguf, layers=len(NEMOTRON_LAYERS))
    writer.gguf.add_head_count_kv([KV_HEADS if kind == "*" else 0 for kind in NEMOTRON_LAYERS])
    writer.gguf.add_feed_forward_length([HIDDEN if kind == "-" else 0 for kind in NEMOTRON_LAYERS])
    writer.gguf.add_ssm_conv_kernel(KERNEL)
    writer.gguf.add_ssm_inner_size(INNER)
    writer.gguf.add_ssm_state_size(STATE)
    writer.gguf.add_ssm_time_step_rank(SSM_HEADS)
    writer.gguf.add_ssm_group_count(GROUPS)
    for layer, kind in enumerate(NEMOTRON_LAYERS):
        block = f"blk.{layer}"
        writer.ones(f"{block}.attn_norm", WIDTH)
        if kind == "*":
            writer.attention(block)
        elif kind == "-":
            writer.matrix(f"{block}.ffn_up", HIDDEN, WIDTH)
            writer.matrix(f"{block}.ffn_down", WIDTH, HIDDEN)
        else:
            _add_mamba(writer, block)
    give_words(_words(folder), NEMOTRON_TOKENS, NEMOTRON_TEMPLATE, "<|im_end|>")
    writer.close(_words(folder), "<|im_end|>")
    return folder / "nemotron-h.gguf"


def write_qwen2vl(folder: Path) -> Path:
    """Writes the text model of a Qwen2-VL of two layers, whose positions have three axes."""
    writer = _Writer(folder / "qwen2vl.gguf", "qwen2vl")
    _add_shape(writer.gguf, layers=2)
    writer.gguf.add_head_count_kv(KV_HEADS)
    writer.gguf.add_feed_forward_length(HIDDEN)
    writer.gguf.add_rope_freq_base(10_000.0)
    writer.gguf.add_rope_dimension_sections([*AXES, 0])
    for layer in range(2):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            writer.ones(f"{block}.{norm}", WIDTH)
        writer.attention(block)
        for name, size in (("attn_q", WIDTH), ("attn_k", WIDTH // 2), ("attn_v", WIDTH // 2)):
            writer.plain(f"{block}.{name}.bias", np.linspace(-0.5, 0.5, size))
        for name in ("ffn_up", "ffn_gate"):
            writer.matrix(f"{block}.{name}", HIDDEN, WIDTH)
        writer.matrix(f"{block}.ffn_down", WIDTH, HIDDEN)
    give_words(_words(folder), NEMOTRON_TOKENS, NEMOTRON_TEMPLATE, "<|im_end|>")
    writer.close(_words(folder), "<|im_end|>")
    return folder / "qwen2vl.gguf"


def write_qwen2vl_projector(folder: Path) -> Path:
    """Writes an encoder of pictures for it, with one layer; four patches of 14 x 14 pixels are one token."""
    writer = _Writer(folder / "mmproj.gguf", "clip")
    writer.gguf.add_clip_has_vision_encoder(True)
    writer.gguf.add_clip_projector_type("qwen2vl_merger")
    width, inner = 32, 64
    numbers = {"embedding_length": width, "feed_forward_length": inner, "block_count": 1, "projection_dim": WIDTH}
    numbers |= {"attention.head_count": 2, "image_size": 56, "patch_size": 14}
    for name, value in numbers.items():
        writer.gguf.add_uint32(f"clip.vision.{name}", value)
    writer.gguf.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for name in ("mean", "std"):
        writer.gguf.add_array(f"clip.vision.image_{name}", [0.5, 0.5, 0.5])
    patch = np.random.default_rng(8).standard_normal((2, width, 3, 14, 14)) * 0.05
    writer.plain("v.patch_embd.weight", patch[0])
    writer.plain("v.patch_embd.weight.1", patch[1])
    sizes = {f"attn_{one}": (width, width) for one in ("q", "k", "v", "out")}
    sizes |= {"ffn_up": (inner, width), "ffn_down": (width, inner)}
    linear = {f"v.blk.0.{name}": size for name, size in sizes.items()}
    linear |= {"mm.0": (4 * width, 4 * width), "mm.2": (WIDTH, 4 * width)}
    for name, size in linear.items():
        writer.matrix(name, *size)
        writer.plain(f"{name}.bias", np.linspace(-0.1, 0.1, size[0]))
    for name in ("v.blk.0.ln1", "v.blk.0.ln2", "v.post_ln"):
        writer.ones(name, width)
        writer.plain(f"{name}.bias", np.zeros(width))
    writer.write()
    return folder / "mmproj.gguf"


def _add_mamba(writer: _Writer, block: str) -> None:
    convolved = INNER + 2 * GROUPS * STATE
    writer.matrix(f"{block}.ssm_in", 2 * INNER + 2 * GROUPS * STATE + SSM_HEADS, WIDTH)
    writer.matrix(f"{block}.ssm_conv1d", convolved, KERNEL)
    writer.plain(f"{block}.ssm_conv1d.bias", np.full(convolved, 0.1))
    writer.plain(f"{block}.ssm_dt.bias", np.full(SSM_HEADS, -1.0))
    writer.plain(f"{block}.ssm_a", -np.linspace(0.5, 2.0, SSM_HEADS)[:, None])
    writer.plain(f"{block}.ssm_d", np.ones((SSM_HEADS, 1)))
    writer.ones(f"{block}.ssm_norm", GROUPS, INNER // GROUPS)
    writer.matrix(f"{block}.ssm_out", WIDTH, INNER)


def _add_shape(writer: gguf.GGUFWriter, *, layers: int) -> None:
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)


def _words(folder: Path) -> Path:
    """Returns the folder of the tokenizer's files; creates it if it is missing."""
    words = folder / "words"
    if not words.is_dir():
        words.mkdir()
        write_tokenizer(words)
    return words


def _add_words(writer: gguf.GGUFWriter, folder: Path, eos: str) -> int:
    """Adds the tokenizer and the template to the GGUF metadata; returns the number of tokens."""
    said = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    ids = dict(said["model"]["vocab"])
    ids |= {each["content"]: each["id"] for each in said["added_tokens"]}
    special = {each["content"] for each in said["added_tokens"]}
    by_id = {number: token for token, number in sorted(ids.items(), key=lambda item: item[0] in special)}
    tokens = [by_id[number] for number in range(len(by_id))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in special else NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in said["model"]["merges"]])
    writer.add_eos_token_id(ids[eos])
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])
    return len(tokens)
