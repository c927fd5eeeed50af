"""Whisper's weights as PyTorch tensors, under the names of OpenAI's own checkpoints.

They come from such a checkpoint, loaded with `weights_only`, or from a transformers folder of safetensors. No code of
a model is run, and nothing is unpickled without that restriction.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import whisper
from safetensors import SafetensorError, safe_open
from whisper.model import ModelDimensions

from services.audio.engine.vocabulary import (
    MULTILINGUAL,
    WhisperVocabulary,
    package_vocabulary,
    tokenizer_vocabulary,
)
from services.worker.messages import EngineError, error_line

AUDIO_CONTEXT = 1500  # positions of 30 s of sound
_CONFIG, _GENERATION, _WEIGHTS, _INDEX = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
)
_MOST = 65_536  # of any dimension: far above every model
# Names of model parts in transformers and in OpenAI's checkpoints.
_RENAMED = (
    (r"^model\.", ""),
    (r"^(encoder|decoder)\.layers\.", r"\1.blocks."),
    (r"\.self_attn\.", ".attn."),
    (r"\.encoder_attn\.", ".cross_attn."),
    (r"\.self_attn_layer_norm\.", ".attn_ln."),
    (r"\.encoder_attn_layer_norm\.", ".cross_attn_ln."),
    (r"\.final_layer_norm\.", ".mlp_ln."),
    (r"\.q_proj\.", ".query."),
    (r"\.k_proj\.", ".key."),
    (r"\.v_proj\.", ".value."),
    (r"\.out_proj\.", ".out."),
    (r"\.fc1\.", ".mlp.0."),
    (r"\.fc2\.", ".mlp.2."),
    (r"\.embed_tokens\.", ".token_embedding."),
    (r"\.embed_positions\.weight$", ".positional_embedding"),
    (r"^encoder\.layer_norm\.", "encoder.ln_post."),
    (r"^decoder\.layer_norm\.", "decoder.ln."),
)
_DIMENSIONS = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}


@dataclass(slots=True)
class Checkpoint:
    """A stored model. The tensors may be views of the file and must not be changed."""

    source: Path  # the file or folder, for errors
    dimensions: ModelDimensions
    tensors: dict[str, torch.Tensor]
    alignment_heads: list[tuple[int, int]]  # (layer, head) of the decoder whose attention follows the sound
    vocabulary: WhisperVocabulary


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a `.pt` file, a folder with one, or a folder of safetensors.

    Raises:
        EngineError: MODEL_INVALID; the message names the missing or wrong file.
    """
    path = checkpoint_path(path)
    return _read_folder(path) if path.is_dir() else _read_file(path)


def checkpoint_path(path: Path) -> Path:
    """Returns the only `.pt` file of a folder that has no config.json; else `path` itself."""
    if path.is_dir() and not (path / _CONFIG).is_file():
        found = [file for file in path.iterdir() if file.suffix == ".pt"]
        if len(found) == 1:
            return found[0]
    return path


def _read_file(path: Path) -> Checkpoint:
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        dimensions = ModelDimensions(**stored["dims"])
        tensors = dict(stored["model_state_dict"])
    except FileNotFoundError:
        raise EngineError("MODEL_INVALID", f"{path} is missing") from None
    except Exception as error:  # the reader raises many types for a truncated file or one that is no checkpoint
        raise EngineError("MODEL_INVALID", f"{path} is not a Whisper checkpoint: {_reason(error)}") from error
    if not all(isinstance(tensor, torch.Tensor) and tensor.is_floating_point() for tensor in tensors.values()):
        raise EngineError("MODEL_INVALID", f"{path} is not a Whisper checkpoint: it does not contain weights")
    _check_dimensions(dimensions, path)
    vocabulary = package_vocabulary(Path(whisper.__file__).parent / "assets", dimensions.n_vocab)
    return Checkpoint(path, dimensions, tensors, _known_heads(dimensions, path.stem), vocabulary)


def _reason(error: Exception) -> str:
    """Returns the reader's error text, without its advice to load the file with fewer checks."""
    found = re.search(r"Unsupported \w+: (?:GLOBAL )?([\w.]+)", str(error))
    if found:
        return f"it names {found[1]}, and only tensors may be in it"
    return "it holds more than tensors" if "weights_only" in str(error) else error_line(error)


def _read_folder(folder: Path) -> Checkpoint:
    config = _read_json(folder / _CONFIG)
    try:
        dimensions = ModelDimensions(**{name: config[key] for name, key in _DIMENSIONS.items()})
    except KeyError as error:
        raise EngineError("MODEL_INVALID", f"{folder / _CONFIG} lacks {error.args[0]}") from None
    if config.get("scale_embedding") or config.get("activation_function", "gelu") != "gelu":
        raise EngineError(
            "UNSUPPORTED", f"{folder / _CONFIG}: only gelu and unscaled embeddings, as in Whisper, are supported"
        )
    _check_dimensions(dimensions, folder / _CONFIG)
    vocabulary = tokenizer_vocabulary(folder, dimensions.n_vocab)
    tensors = {_renamed(name): tensor for file in _files(folder) for name, tensor in _read_tensors(file)}
    tensors.pop("proj_out.weight", None)  # a copy of the embeddings
    return Checkpoint(folder, dimensions, tensors, _stored_heads(folder, dimensions), vocabulary)


def _files(folder: Path) -> list[Path]:
    if (folder / _WEIGHTS).is_file() or not (folder / _INDEX).is_file():
        return [folder / _WEIGHTS]
    index = _read_json(folder / _INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise EngineError("MODEL_INVALID", f"{folder / _INDEX} has no weight_map")
    if outside := [name for name in index.values() if Path(name).name != name]:
        raise EngineError(
            "MODEL_INVALID", f"{folder / _INDEX} names {outside[0]!r}, which is not a file in the same folder"
        )
    return [folder / name for name in sorted(set(index.values()))]


def _read_tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    if not file.is_file():
        raise EngineError("MODEL_INVALID", f"{file} is missing")
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                yield name, opened.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise EngineError("MODEL_INVALID", f"{file} cannot be read: {error_line(error)}") from error


def _renamed(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def _check_dimensions(dimensions: ModelDimensions, path: Path) -> None:
    for field in fields(dimensions):
        value = getattr(dimensions, field.name)
        if type(value) is not int or not 0 < value <= _MOST:
            raise EngineError("MODEL_INVALID", f"{path}: {field.name} must be 1 to {_MOST}, not {value!r}")
    if dimensions.n_audio_ctx != AUDIO_CONTEXT or dimensions.n_audio_state != dimensions.n_text_state:
        raise EngineError(
            "MODEL_INVALID", f"{path}: the encoder must read windows of 30 s and be as wide as the decoder"
        )
    if dimensions.n_audio_state % dimensions.n_audio_head or dimensions.n_text_state % dimensions.n_text_head:
        raise EngineError("MODEL_INVALID", f"{path}: the width is not a multiple of the number of heads")


def _stored_heads(folder: Path, dimensions: ModelDimensions) -> list[tuple[int, int]]:
    """Returns the heads in generation_config.json, or else the known ones."""
    path = folder / _GENERATION
    found = _read_json(path).get("alignment_heads") if path.is_file() else None
    if found is None:
        return _known_heads(dimensions, "")
    try:
        heads = [(int(layer), int(head)) for layer, head in found]
    except (TypeError, ValueError) as error:
        raise EngineError("MODEL_INVALID", f"{path}: alignment_heads is not a list of pairs") from error
    if any(not (0 <= x < dimensions.n_text_layer and 0 <= y < dimensions.n_text_head) for x, y in heads):
        raise EngineError("MODEL_INVALID", f"{path}: alignment_heads names a head that the model does not have")
    return heads


def _known_heads(dimensions: ModelDimensions, name: str) -> list[tuple[int, int]]:
    """Returns the heads of OpenAI's model of this name, or else of this size; else all in the decoder's upper half."""
    layers, heads = dimensions.n_text_layer, dimensions.n_text_head
    found = {known: _unpacked(dump) for known, dump in whisper._ALIGNMENT_HEADS.items()}
    fitting = {
        known: mask
        for known, mask in found.items()
        if len(mask) == layers * heads
        and known.endswith(".en") == (dimensions.n_vocab < MULTILINGUAL)
        and (known in {"large", "large-v3", "large-v3-turbo", "turbo"}) == (dimensions.n_vocab > MULTILINGUAL)
    }
    if name in fitting:
        fitting = {name: fitting[name]}
    if len(set(fitting.values())) == 1:
        mask = next(iter(fitting.values()))
        return [divmod(index, heads) for index, chosen in enumerate(mask) if chosen]
    return [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]


def _unpacked(dump: bytes) -> bytes:
    return gzip.decompress(base64.b85decode(dump))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError("MODEL_INVALID", f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise EngineError("MODEL_INVALID", f"{path} cannot be read: {error_line(error)}") from error
    if not isinstance(found, dict):
        raise EngineError("MODEL_INVALID", f"{path} is not a JSON object")
    return found
