"""The trained parts as a GGUF file that libmtmd reads (an mmproj). `joining` makes safetensors of it."""

from __future__ import annotations

from pathlib import Path

import gguf

from training.shapes_vlm.architecture import DEVIATION, LAYERS, MEAN, PATCH, WIDTH, Eyes

NAME = "mmproj-shapes-vlm.gguf"
MOST_BYTES = 25_000_000
# Tensors of transformers and libmtmd, except the layers'.
ENDS = {
    "vision_tower.embeddings.patch_embedding": "v.patch_embd",
    "vision_tower.embeddings.position_embedding": "v.position_embd",
    "multi_modal_projector.linear_1": "mm.0",
    "multi_modal_projector.linear_2": "mm.2",
}
LAYER = {
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


def export(eyes: Eyes, folder: Path) -> Path:
    """Writes the file into a folder and returns its path. Raises ValueError if it is too large to ship."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    config = eyes.vision_tower.config
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_name("shapes-vlm")
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)  # its approximation by tanh, as in the tower
    writer.add_uint32("clip.vision.image_size", config.image_size)
    writer.add_uint32("clip.vision.patch_size", PATCH)
    writer.add_uint32("clip.vision.embedding_length", WIDTH)
    writer.add_uint32("clip.vision.feed_forward_length", config.intermediate_size)
    writer.add_uint32("clip.vision.projection_dim", eyes.multi_modal_projector.linear_2.out_features)
    writer.add_uint32("clip.vision.block_count", LAYERS + 1)  # libmtmd computes all but the last
    writer.add_uint32("clip.vision.attention.head_count", config.num_attention_heads)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", config.layer_norm_eps)
    writer.add_array("clip.vision.image_mean", list(MEAN))
    writer.add_array("clip.vision.image_std", list(DEVIATION))
    for name, tensor in eyes.state_dict().items():
        if "post_layernorm" not in name:
            # Matrices in half precision; libmtmd wants norms, biases and positions in single precision.
            whole = tensor.ndim == 1 or "position" in name
            writer.add_tensor(gguf_name(name), tensor.float().numpy().astype("f4" if whole else "f2"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, more than {MOST_BYTES}")
    return path


def gguf_name(name: str) -> str:
    """Maps a tensor's name to libmtmd's: `vision_tower.encoder.layers.0.mlp.fc1.bias` is `v.blk.0.ffn_up.bias`."""
    stem, _, kind = name.rpartition(".")
    if stem in ENDS:
        return f"{ENDS[stem]}.{kind}"
    number, _, part = stem.removeprefix("vision_tower.encoder.layers.").partition(".")
    return f"v.blk.{number}.{LAYER[part]}.{kind}"
