"""Small model files for the catalog's tests: the minimum of each format that an inspection accepts."""

from __future__ import annotations

import json
import struct
from pathlib import Path


def gguf(path: Path, architecture: str = "llama", context: int = 2048, padding: int = 0) -> Path:
    """Writes a GGUF file without tensors; `padding` bytes follow its header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [
        _text("general.architecture") + struct.pack("<I", 8) + _text(architecture),
        _text(f"{architecture}.context_length") + struct.pack("<II", 4, context),
    ]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries) + bytes(padding))
    return path


def safetensors(folder: Path, architecture: str = "llama") -> Path:
    """Writes a model folder with one weight of eight bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": architecture, "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 1024}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    return folder


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()
