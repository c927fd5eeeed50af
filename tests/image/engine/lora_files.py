"""Small LoRAs with random weights for any pipeline, with diffusers' or kohya's tensor names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from tests.late import late

nn = late("torch.nn")
safetensors_torch = late("safetensors.torch")
torch = late("torch")

RANK = 4


def write_lora(
    pipeline: Any,
    path: Path,
    *,
    seed: int = 1,
    style: Literal["diffusers", "kohya"] = "diffusers",
    strength: float = 0.3,
) -> Path:
    """Writes a LoRA for the attention of a pipeline's denoiser and of its text encoder."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for component in ("unet", "transformer", "text_encoder"):
        part = getattr(pipeline, component, None)
        for name, layer in part.named_modules() if part is not None else ():
            if isinstance(layer, nn.Linear) and name.endswith(("to_q", "to_k", "to_v", "q_proj", "v_proj", "out_proj")):
                down = torch.randn(RANK, layer.in_features, generator=generator) * strength
                up = torch.randn(layer.out_features, RANK, generator=generator) * strength
                inner = f"text_model.{name.removeprefix('text_model.')}" if component == "text_encoder" else name
                tensors |= _named(component, inner, down, up, style)
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors_torch.save_file(tensors, path)
    return path


def _named(component: str, name: str, down: torch.Tensor, up: torch.Tensor, style: str) -> dict[str, torch.Tensor]:
    if style == "diffusers":
        return {f"{component}.{name}.lora_A.weight": down, f"{component}.{name}.lora_B.weight": up}
    stem = f"lora_{'te' if component == 'text_encoder' else 'unet'}_{name.replace('.', '_')}"
    return {f"{stem}.lora_down.weight": down, f"{stem}.lora_up.weight": up, f"{stem}.alpha": torch.tensor(float(RANK))}
