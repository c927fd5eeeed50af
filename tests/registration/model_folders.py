"""Small handmade models of every format: complete, so that each test can remove the part that it checks."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

TENSORS = {"model.embed.weight": 8, "model.norm.weight": 4, "lm_head.weight": 8}


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def weights(tensors: dict[str, int]) -> bytes:
    """Returns a safetensors file of float32 vectors with these lengths."""
    entries, at = {}, 0
    for name, length in tensors.items():
        entries[name] = {"dtype": "F32", "shape": [length], "data_offsets": [at, at + 4 * length]}
        at += 4 * length
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + bytes(at)


def gguf_of(architecture: str) -> bytes:
    """Returns a GGUF header that only names an architecture."""
    texts = [text.encode() for text in ("general.architecture", architecture)]
    key, value = (struct.pack("<Q", len(text)) + text for text in texts)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<I", 8) + value


def safetensors_model(folder: Path, model_type: str = "exotic9000") -> Path:
    """Writes config.json, tokenizer.json and model.safetensors of an unknown architecture."""
    config = {"model_type": model_type, "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 512}
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", {"version": "1.0"})
    (folder / "model.safetensors").write_bytes(weights(TENSORS))
    return folder


def sharded_model(folder: Path) -> Path:
    """Writes the same model in two shards with an index."""
    safetensors_model(folder)
    (folder / "model.safetensors").unlink()
    first = {name: TENSORS[name] for name in ("model.embed.weight", "model.norm.weight")}
    second = {"lm_head.weight": TENSORS["lm_head.weight"]}
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name, tensors in zip(names, (first, second), strict=True):
        (folder / name).write_bytes(weights(tensors))
    index = {**dict.fromkeys(first, names[0]), **dict.fromkeys(second, names[1])}
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": 80}, "weight_map": index})
    return folder


def diffusers_model(folder: Path) -> Path:
    """Writes a Stable Diffusion pipeline: scheduler, tokenizer and three models."""
    write_json(
        folder / "model_index.json",
        {
            "_class_name": "StableDiffusionPipeline",
            "_diffusers_version": "0.35.0",
            "scheduler": ["diffusers", "DDIMScheduler"],
            "tokenizer": ["transformers", "CLIPTokenizer"],
            "text_encoder": ["transformers", "CLIPTextModel"],
            "unet": ["diffusers", "UNet2DConditionModel"],
            "vae": ["diffusers", "AutoencoderKL"],
            "safety_checker": [None, None],
        },
    )
    write_json(folder / "scheduler" / "scheduler_config.json", {"_class_name": "DDIMScheduler"})
    write_json(folder / "tokenizer" / "tokenizer_config.json", {})
    write_json(folder / "tokenizer" / "vocab.json", {})
    (folder / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    for name, file in {
        "text_encoder": "model.safetensors",
        "unet": "diffusion_pytorch_model.safetensors",
        "vae": "diffusion_pytorch_model.safetensors",
    }.items():
        write_json(folder / name / "config.json", {"model_type": "clip_text_model"})
        (folder / name / file).write_bytes(weights({f"{name}.weight": 4}))
    return folder


def ctranslate2_whisper(folder: Path) -> Path:
    """Writes a CTranslate2 folder as faster-whisper uses it."""
    write_json(folder / "config.json", {"suppress_ids": [], "lang_ids": []})
    write_json(folder / "tokenizer.json", {"version": "1.0"})
    (folder / "vocabulary.txt").write_text("\n".join(f"t{number}" for number in range(51864)))
    (folder / "model.bin").write_bytes(bytes(64))
    return folder


class Evil:
    """An object whose pickle runs code when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("code was run",))


def evil_checkpoint(path: Path) -> Path:
    """Writes a zip archive in the format of torch.save whose pickle calls a function."""
    import pickle

    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({"dims": Evil()}, protocol=2))
        archive.writestr("model/version", "3\n")
    return path
