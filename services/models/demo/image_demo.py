"""The bundled image model: a miniature Stable Diffusion of 14 MB, trained by `training/shapes_sd/`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.models.demo.demo_folder import copy_bundled
from services.models.demo.text_demo import DemoError, is_installed

DEMO_SHAPES_ID = "shapes-sd"
# OpenAI's model name, so that official examples run unchanged.
DEMO_SHAPES_ALIAS = "gpt-image-1"
DEMO_SHAPES_STEPS = 20  # the number of steps in its model card's evaluation
DEMO_SHAPES_GUIDANCE = 2.5
WEIGHTS = Path(__file__).parents[3] / "training" / "shapes_sd" / "weights"
MANIFEST = "SHA256SUMS"  # in sha256sum's format; lists all files of the model


def bundled_shapes() -> Path | None:
    """Returns the shipped folder; None if it, or diffusers to run the model, is not installed."""
    return WEIGHTS if (WEIGHTS / MANIFEST).exists() and is_installed("diffusers") else None


def install_shapes(models_dir: Path, progress: Callable[[str], None]) -> Path | None:
    """Installs the model in `models_dir`, once. Returns its folder, or None if `bundled_shapes` does.

    Raises:
        DemoError: a shipped file's hash differs, or it cannot be copied.
    """
    source = bundled_shapes()
    if source is None:
        return None
    target = models_dir / DEMO_SHAPES_ID
    if not target.exists():
        progress(f"preparing {DEMO_SHAPES_ID}: copying it, once")
        copy_bundled(source, target, manifest(source), "allm")
    return target


def manifest(folder: Path) -> dict[str, str]:
    """Returns the model's files and their sha256. Raises DemoError if the list cannot be read."""
    path = folder / MANIFEST
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return {name.removeprefix("*"): sha256 for sha256, name in (line.split(maxsplit=1) for line in lines)}
    except (OSError, ValueError) as error:
        raise DemoError(f"{path} is not the list of files that it should be: reinstall allm") from error
