"""The trained parts and SmolLM2 as one LLaVA model in safetensors, for transformers and the runtimes that read it.

python -m training.shapes_vlm.joining SOURCE PROJECTOR FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file, save_file

from training.shapes_vlm.architecture import IMAGE_TOKEN, IMAGE_TOKEN_ID
from training.shapes_vlm.export import ENDS, LAYER

TOWER = "vision_tower.vision_model"
_ENDS = {theirs: ours.replace("vision_tower", TOWER) for ours, theirs in ENDS.items()}
_LAYER = {theirs: ours for ours, theirs in LAYER.items()}


def join(source: Path, projector: Path, folder: Path) -> None:
    """Creates `folder` with the LLaVA model of a text model's folder and a SigLIP tower with its projector in GGUF.

    Raises OSError or KeyError for files that do not belong together.
    """
    reader = gguf.GGUFReader(projector)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    text = load_file(source / "model.safetensors")
    weights = {f"language_model.{name}": tensor for name, tensor in text.items()}
    for tensor in reader.tensors:
        shape = tuple(reversed(tensor.shape.tolist()))
        weights[llava_name(tensor.name)] = torch.tensor(tensor.data).reshape(shape).to(torch.bfloat16)
    width = metadata["clip.vision.embedding_length"]
    # Never computed, because LLaVA reads the tower before its last layer; but transformers expects it.
    weights[f"{TOWER}.post_layernorm.weight"] = torch.ones(width, dtype=torch.bfloat16)
    weights[f"{TOWER}.post_layernorm.bias"] = torch.zeros(width, dtype=torch.bfloat16)
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        for name in ("generation_config.json", "tokenizer.json"):
            shutil.copyfile(source / name, partial / name)
        _write_processor(metadata, source, partial)
        _write_llava_config(metadata, source, partial)
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def llava_name(name: str) -> str:
    """Maps libmtmd's name of a tensor to LLaVA's, as `gguf_name` does the other way."""
    stem, _, kind = name.rpartition(".")
    if stem in _ENDS:
        return f"{_ENDS[stem]}.{kind}"
    _, _, number, part = stem.split(".")
    return f"{TOWER}.encoder.layers.{number}.{_LAYER[part]}.{kind}"


def _write_llava_config(metadata: dict[str, Any], source: Path, folder: Path) -> None:
    side, patch = metadata["clip.vision.image_size"], metadata["clip.vision.patch_size"]
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": metadata["clip.vision.embedding_length"],
        "image_size": side,
        "intermediate_size": metadata["clip.vision.feed_forward_length"],
        "layer_norm_eps": round(metadata["clip.vision.attention.layer_norm_epsilon"], 9),
        "num_attention_heads": metadata["clip.vision.attention.head_count"],
        "num_hidden_layers": metadata["clip.vision.block_count"],
        "patch_size": patch,
        "vision_use_head": False,
    }
    text = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_seq_length": (side // patch) ** 2,
        "image_token_index": IMAGE_TOKEN_ID,
        "multimodal_projector_bias": True,
        "projector_hidden_act": "gelu",
        "text_config": text,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vision_config": vision,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "full",  # SigLIP has no class token
    }
    _write_json(folder / "config.json", config)


def _write_processor(metadata: dict[str, Any], source: Path, folder: Path) -> None:
    """Writes the settings with which transformers prepares pictures as libmtmd does, and the picture's token."""
    side = metadata["clip.vision.image_size"]
    pictures = {
        "image_processor_type": "LlavaImageProcessor",
        "crop_size": {"height": side, "width": side},
        "do_center_crop": True,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_pad": True,  # to a square, in the mean colour
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [round(value, 8) for value in metadata["clip.vision.image_mean"]],
        "image_std": [round(value, 8) for value in metadata["clip.vision.image_std"]],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"shortest_edge": side},
    }
    _write_json(folder / "preprocessor_config.json", pictures)
    processor = {
        "processor_class": "LlavaProcessor",
        "image_token": IMAGE_TOKEN,
        "num_additional_image_tokens": 0,
        "patch_size": metadata["clip.vision.patch_size"],
        "vision_feature_select_strategy": "full",
    }
    _write_json(folder / "processor_config.json", processor)
    tokenizer = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    _write_json(folder / "tokenizer_config.json", {**tokenizer, "extra_special_tokens": {"image_token": IMAGE_TOKEN}})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    join(*map(Path, sys.argv[1:]))
