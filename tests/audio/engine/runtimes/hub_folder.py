"""A Whisper model in the layout of transformers, made from OpenAI's checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.late import late

if TYPE_CHECKING:
    from services.audio.engine.runtimes.checkpoint import Checkpoint

safetensors_torch = late("safetensors.torch")

NAMES = {
    "blocks.": "layers.",
    "cross_attn_ln.": "encoder_attn_layer_norm.",
    "attn_ln.": "self_attn_layer_norm.",
    "cross_attn.": "encoder_attn.",
    ".attn.": ".self_attn.",
    "mlp_ln.": "final_layer_norm.",
    ".query.": ".q_proj.",
    ".key.": ".k_proj.",
    ".value.": ".v_proj.",
    ".out.": ".out_proj.",
    "mlp.0.": "fc1.",
    "mlp.2.": "fc2.",
    "token_embedding.": "embed_tokens.",
    "positional_embedding": "embed_positions.weight",
    "ln_post.": "layer_norm.",
    "decoder.ln.": "decoder.layer_norm.",
}


def write_hub_folder(folder: Path, stored: Checkpoint, tokenizer: Path, *, shards: int) -> Path:
    """Writes config.json, tokenizer.json and the given number of weight files."""
    size = stored.dimensions
    config = {
        "model_type": "whisper",
        "activation_function": "gelu",
        "d_model": size.n_audio_state,
        "num_mel_bins": size.n_mels,
        "max_source_positions": size.n_audio_ctx,
        "encoder_attention_heads": size.n_audio_head,
        "encoder_layers": size.n_audio_layer,
        "vocab_size": size.n_vocab,
        "max_target_positions": size.n_text_ctx,
        "decoder_attention_heads": size.n_text_head,
        "decoder_layers": size.n_text_layer,
    }
    (folder / "config.json").write_text(json.dumps(config))
    heads = [list(pair) for pair in stored.alignment_heads]
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": heads}))
    shutil.copy(tokenizer, folder / "tokenizer.json")
    tensors = {f"model.{_renamed(name)}": tensor.contiguous().clone() for name, tensor in stored.tensors.items()}
    names = sorted(tensors)
    placed = {name: f"model-{index % shards + 1}.safetensors" for index, name in enumerate(names)}
    for file in set(placed.values()):
        safetensors_torch.save_file({name: tensors[name] for name in names if placed[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return folder


def _renamed(name: str) -> str:
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name
