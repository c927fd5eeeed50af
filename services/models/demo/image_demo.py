"""The bundled image model: a miniature Stable Diffusion of 14 MB, trained by `training/shapes_sd/`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.models.demo.demo_folder import copy_bundled
from services.models.demo.text_demo import DemoError, is_installed

DEMO_SHAPES_ID = "shapes-sd"
# What OpenAI calls its own: official examples find a model.
DEMO_SHAPES_ALIAS = "gpt-image-1"
DEMO_SHAPES_STEPS = 20  # what its card says that it is judged at
DEMO_SHAPES_GUIDANCE = 2.5
WEIGHTS = Path(__file__).parents[3] / "training" / "shapes_sd" / "weights"
MANIFEST = "SHA256SUMS"  # as sha256sum writes it: of all files that belong to the model


def bundled_shapes() -> Path | None:
    """The folder that is shipped; None where it, or diffusers to run the model, is not installed."""
    return WEIGHTS if (WEIGHTS / MANIFEST).exists() and is_installed("diffusers") else None


def install_shapes(models_dir: Path, progress: Callable[[str], None]) -> Path | None:
    """Makes the model ready in `models_dir`, once; returns its folder, or None where `bundled_shapes` does.

    Raises:
        DemoError: a shipped file is not the known one, or cannot be copied.
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
    """The files of the model and their sha256. Raises DemoError where the list of them cannot be read."""
    path = folder / MANIFEST
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return {name.removeprefix("*"): sha256 for sha256, name in (line.split(maxsplit=1) for line in lines)}
    except (OSError, ValueError) as error:
        raise DemoError(f"{path} is not the list of files that it should be: reinstall allm") from error
