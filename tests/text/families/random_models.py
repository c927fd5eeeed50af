"""Small models with random weights, in the published layout: config.json, safetensors, tokenizer.

The weights are drawn so that every mistake shows: transformers' own initialisation sets all biases to zero and makes
attention nearly even, so any mistake in it is lost in the noise.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.late import late
from tests.text.families.packed_experts import pack
from tests.text.families.small_tokenizer import write_tokenizer

safetensors_torch = late("safetensors.torch")
torch = late("torch")
transformers = late("transformers")

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SPLIT_EXPERTS = {"qwen3_moe", "glm4_moe", "nemotron_h"}  # published as one matrix per expert
BACKBONE = {"nemotron_h"}  # published as `backbone`; transformers names it `model`
# Of models that see: the names in transformers, and as published.
PUBLISHED_PREFIXES = {
    "llava": {
        r"^lm_head": "language_model.lm_head",
        r"^model\.language_model": "language_model.model",
        r"^model\.vision_tower": "vision_tower.vision_model",
        r"^model\.multi_modal_projector": "multi_modal_projector",
    },
    "llava_next": {
        r"^lm_head": "language_model.lm_head",
        r"^model\.image_newline": "image_newline",
        r"^model\.language_model": "language_model.model",
        r"^model\.vision_tower": "vision_tower.vision_model",
        r"^model\.multi_modal_projector": "multi_modal_projector",
    },
    "gemma3": {
        r"^model\.language_model": "language_model.model",
        r"^model\.vision_tower": "vision_tower.vision_model",
        r"^model\.multi_modal_projector": "multi_modal_projector",
    },
    "qwen2_vl": {r"^model\.visual": "visual", r"^model\.language_model": "model"},
    "qwen2_5_vl": {r"^model\.visual": "visual", r"^model\.language_model": "model"},
}
GAIN = 1.2  # of a matrix, relative to one that keeps the scale of its input
# From normally distributed numbers: A from 1 to 16, dt from 0.001 to 0.1 where a token adds nothing to it.
_MAMBA: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "A_log": lambda drawn: (1 + 15 * _uniform(drawn)).log(),
    "D": lambda drawn: 1 + 0.2 * drawn,
    "dt_bias": lambda drawn: (0.001 * 100 ** _uniform(drawn)).expm1().log(),
}
ALIKE = 0.2  # relative difference between a layer's experts in models written with `alike`


def write_model(
    folder: Path,
    config: Mapping[str, Any],
    *,
    seed: int = 0,
    alike: bool = False,
    device: str = "cpu",
    words: Sequence[str] = (),
) -> Path:
    """Writes a whole model in bfloat16. With `alike`, the choice of another expert makes only a small difference.

    `device` draws the numbers, other ones than another device. `words` are the last special tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    safetensors_torch.save_file(draw_weights(folder, seed, alike, device), folder / WHOLE, {"format": "pt"})
    write_tokenizer(folder, words)
    return folder


def write_variant(
    folder: Path, source: Path, config: Mapping[str, Any], *, without: Sequence[str] = (), **weights: float
) -> Path:
    """Writes the model of `source` under another config.json.

    Leaves out tensors whose names end in one of `without`; fills tensors whose names end in a key of `weights` with its
    value.
    """
    folder.mkdir(parents=True)
    tensors = safetensors_torch.load_file(source / WHOLE)
    for name, tensor in list(tensors.items()):
        for end, value in weights.items():
            if name.endswith(end):
                tensor.fill_(value)
        if name.endswith(tuple(without)):
            del tensors[name]
    copy_words(folder, source)
    write_json(folder / "config.json", config)
    safetensors_torch.save_file(tensors, folder / WHOLE, {"format": "pt"})
    return folder


def write_packed(folder: Path, plain: Path, added: Mapping[str, Any]) -> Path:
    """Writes a copy of `plain`, a gpt-oss, with experts in MXFP4, and rewrites `plain` with the rounded experts."""
    tensors = safetensors_torch.load_file(plain / WHOLE)
    packed: dict[str, torch.Tensor] = {}
    for name, tensor in list(tensors.items()):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed[f"{name}_blocks"], packed[f"{name}_scales"], tensors[name] = pack(tensor)
        else:
            packed[name] = tensor
    safetensors_torch.save_file(tensors, plain / WHOLE, {"format": "pt"})
    folder.mkdir(parents=True)
    copy_words(folder, plain)
    write_json(folder / "config.json", json.loads((plain / "config.json").read_text()) | dict(added))
    safetensors_torch.save_file(packed, folder / WHOLE, {"format": "pt"})
    return folder


def draw_weights(folder: Path, seed: int, alike: bool, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Draws weights for the config.json in `folder`, under the names of published checkpoints."""
    config = transformers.AutoConfig.from_pretrained(folder)
    sees = hasattr(config, "vision_config")
    definition = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = definition.from_config(config)
    drawn: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        tensor = _draw(name, parameter.shape, seed, alike, transposed=config.model_type == "gpt_oss", device=device)
        drawn |= _split_experts(name, tensor) if config.model_type in SPLIT_EXPERTS else {name: tensor}
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            drawn[name] = _draw(name, buffer.shape, seed, alike, transposed=False, device=device)
    return {
        _published(name, config.model_type): tensor.to("cpu", torch.bfloat16).contiguous()
        for name, tensor in drawn.items()
    }


def _published(name: str, kind: str) -> str:
    """Returns a tensor's name in published checkpoints."""
    if kind in BACKBONE:
        return re.sub(r"^model\.", "backbone.", name)
    for pattern, published in PUBLISHED_PREFIXES.get(kind, {}).items():
        if re.match(pattern, name):
            return re.sub(pattern, published, name)
    return name


def _draw(name: str, shape: torch.Size, seed: int, alike: bool, transposed: bool, device: str) -> torch.Tensor:
    """Draws one parameter, independently of all others. `transposed`: experts are [expert, in, out]."""
    random = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    tensor = torch.randn(shape, generator=random, device=device)
    kind = name.rpartition(".")[2]
    if kind in _MAMBA:
        return _MAMBA[kind](tensor)
    if re.search(r"norm(_f|\d)?\.weight$", name):
        return 1 + 0.2 * tensor
    if name.endswith(("embed_tokens.weight", "embeddings.weight")):
        return 2 * GAIN * tensor / shape[-1] ** 0.5  # small against the layers' sums, or a tied model repeats itself
    if kind.endswith("bias"):
        return 0.3 * tensor
    if kind == "sinks":
        return 1 + tensor
    if "experts" in name and alike:
        tensor = tensor[:1] + ALIKE * (tensor - tensor[:1])
    inner = shape[1] if len(shape) == 3 and transposed else shape[-1]
    if len(shape) > 3:  # a convolution
        inner = shape[1:].numel()
    return GAIN * tensor / inner**0.5


def _uniform(drawn: torch.Tensor) -> torch.Tensor:
    """Maps normally distributed numbers to evenly distributed ones in 0 to 1."""
    return torch.special.ndtr(drawn)


def _split_experts(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Splits transformers' tensor of all experts into the published matrices of each expert."""
    stem, _, kind = name.rpartition(".")
    if not stem.endswith(".experts"):
        return {name: tensor}
    parts = {"gate_proj": tensor.chunk(2, 1)[0], "up_proj": tensor.chunk(2, 1)[1]} if kind == "gate_up_proj" else {}
    return {
        f"{stem}.{expert}.{part}.weight": matrix
        for part, matrices in (parts or {kind: tensor}).items()
        for expert, matrix in enumerate(matrices)
    }


def shard(folder: Path, source: Path) -> tuple[str, str]:
    """Writes the model of `source` in two shards with an index; returns their names. Tensors alternate between them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    tensors = safetensors_torch.load_file(source / WHOLE)
    weight_map = {tensor: names[number % 2] for number, tensor in enumerate(sorted(tensors))}
    for file in names:
        held = {tensor: tensors[tensor] for tensor, place in weight_map.items() if place == file}
        safetensors_torch.save_file(held, folder / file, {"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    copy_words(folder, source)
    return names


def copy_words(folder: Path, source: Path) -> None:
    """Copies everything but the weights and their index."""
    for path in source.iterdir():
        if path.suffix in (".json", ".jinja") and path.name != INDEX:
            (folder / path.name).write_bytes(path.read_bytes())


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file."""
    path.write_text(json.dumps(content, indent=2))
