"""Single-file checkpoints in Stability's layout, made from a pipeline's folder by renaming its tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.late import late

safetensors_torch = late("safetensors.torch")
torch = late("torch")

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1",
    "conv_shortcut": "skip_connection",
}
_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
_OPEN_CLIP = {
    "text_model.embeddings.token_embedding": "token_embedding",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm": "ln_final",
    "text_model.encoder.layers": "transformer.resblocks",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}
_ENDS = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}


def write_original(folder: Path, path: Path) -> Path:
    """Writes a Stable Diffusion 1.x or XL pipeline in diffusers' layout from `folder` into one file."""
    tensors: dict[str, torch.Tensor] = {}
    layers = json.loads((folder / "unet" / "config.json").read_text())["layers_per_block"]
    unet = safetensors_torch.load_file(folder / "unet" / "diffusion_pytorch_model.safetensors")
    attended = {name.split(".attentions.")[0] for name in unet if ".attentions." in name}
    for name, tensor in unet.items():
        tensors[f"model.diffusion_model.{_unet(name, layers, attended)}"] = tensor
    blocks = len(json.loads((folder / "vae" / "config.json").read_text())["up_block_types"])
    for name, tensor in safetensors_torch.load_file(folder / "vae" / "diffusion_pytorch_model.safetensors").items():
        kept = tensor[:, :, None, None] if ".attentions." in name and tensor.ndim == 2 else tensor  # as convolutions
        tensors[f"first_stage_model.{_vae(name, blocks)}"] = kept.contiguous()
    second = folder / "text_encoder_2" / "model.safetensors"
    first = "conditioner.embedders.0" if second.exists() else "cond_stage_model"
    for name, tensor in safetensors_torch.load_file(folder / "text_encoder" / "model.safetensors").items():
        tensors[f"{first}.transformer.text_model.{name.removeprefix('text_model.')}"] = tensor
    if second.exists():
        tensors |= {
            f"conditioner.embedders.1.model.{name}": tensor
            for name, tensor in _open_clip(safetensors_torch.load_file(second))
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors_torch.save_file(tensors, path)
    return path


def _unet(name: str, layers: int, attended: set[str]) -> str:
    for ours, theirs in _ENDS.items():
        if name.startswith(f"{ours}."):
            return theirs + name.removeprefix(ours)
    where, number, kind, place, *rest = name.split(".")
    if where == "mid_block":
        kind, place, rest = number, kind, [place, *rest]
        at = 1 if kind == "attentions" else 2 * int(place)
        return f"middle_block.{at}.{_layer(kind, rest)}"
    block, layer = int(number), int(place)
    if kind == "downsamplers":
        return f"input_blocks.{(block + 1) * (layers + 1)}.0.op.{rest[-1]}"
    if kind == "upsamplers":
        after = 2 if f"up_blocks.{block}" in attended else 1
        return f"output_blocks.{block * (layers + 1) + layers}.{after}.conv.{rest[-1]}"
    slot = 1 if kind == "attentions" else 0
    at = block * (layers + 1) + layer + (1 if where == "down_blocks" else 0)
    return f"{'input' if where == 'down_blocks' else 'output'}_blocks.{at}.{slot}.{_layer(kind, rest)}"


def _layer(kind: str, rest: list[str]) -> str:
    if kind == "attentions":
        return ".".join(rest)
    return ".".join((_RESNET[rest[0]], *rest[1:]))


def _vae(name: str, blocks: int) -> str:
    half, part, *rest = name.split(".")
    if half not in ("encoder", "decoder"):
        return name  # quant_conv, post_quant_conv
    if part == "conv_norm_out":
        return f"{half}.norm_out.{rest[0]}"
    if part == "mid_block":
        attention = f"attn_1.{_ATTENTION.get('.'.join(rest[2:-1]))}.{rest[-1]}"
        resnet = f"block_{int(rest[1]) + 1}.{_shortcut('.'.join(rest[2:]))}"
        return f"{half}.mid.{attention if rest[0] == 'attentions' else resnet}"
    if part not in ("down_blocks", "up_blocks"):
        return name
    number, kind, place, *inner = rest
    level = int(number) if part == "down_blocks" else blocks - 1 - int(number)
    side = part.removesuffix("_blocks")
    if kind == "resnets":
        return f"{half}.{side}.{level}.block.{place}.{_shortcut('.'.join(inner))}"
    return f"{half}.{side}.{level}.{side}sample.{'.'.join(inner)}"


def _open_clip(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields CLIP's text encoder in OpenCLIP's layout: three attention matrices in one."""
    for name, tensor in tensors.items():
        if name == "text_projection.weight":
            yield "text_projection", tensor.T.contiguous()
        elif ".self_attn.q_proj." in name:
            parts = [tensors[name.replace("q_proj", each)] for each in ("q_proj", "k_proj", "v_proj")]
            stem, _, kind = name.removeprefix("text_model.encoder.layers.").partition(".self_attn.q_proj.")
            yield f"transformer.resblocks.{stem}.attn.in_proj_{kind}", torch.cat(parts)
        elif not any(f".self_attn.{each}." in name for each in ("k_proj", "v_proj")):
            for ours, theirs in _OPEN_CLIP.items():
                name = name.replace(ours, theirs)  # noqa: PLW2901 (one after the other)
            yield name, tensor


def _shortcut(name: str) -> str:
    return name.replace("conv_shortcut", "nin_shortcut")
