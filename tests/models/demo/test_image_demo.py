"""The bundled image model: copied once, only from the known files, and never half."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from services.models.demo import image_demo as demo_shapes
from services.models.demo.image_demo import DEMO_SHAPES_ID, MANIFEST, WEIGHTS, bundled_shapes, install_shapes, manifest
from services.models.demo.text_demo import DemoError
from services.models.formats.inspect import inspect
from tests.models.formats.handmade_models import local

FILES = {"model_index.json": b"{}", "unet/diffusion_pytorch_model.safetensors": b"weights"}


def silent(_: str) -> None:
    """Ignores progress."""


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Replaces the shipped model with a fake one that has an extra file."""
    folder = tmp_path / "shipped"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items()]
    (folder / MANIFEST).write_text("".join(lines))
    (folder / "README.md").write_text("about it")
    monkeypatch.setattr(demo_shapes, "WEIGHTS", folder)
    return folder


def test_the_shipped_one_is_whole_and_can_be_registered(tmp_path: Path) -> None:
    folder = install_shapes(tmp_path, silent)
    assert folder is not None
    assert files(folder) == set(manifest(WEIGHTS)) == files(WEIGHTS) - {MANIFEST, "README.md"}
    found = inspect(local(folder), "diffusers")
    assert (found.architecture, found.capabilities) == ("StableDiffusionPipeline", frozenset({"image"}))


def test_it_is_copied_once_and_whole(shipped: Path, tmp_path: Path) -> None:
    said: list[str] = []
    folder = install_shapes(tmp_path / "models", said.append)
    assert folder == tmp_path / "models" / DEMO_SHAPES_ID
    assert {name: (folder / name).read_bytes() for name in files(folder)} == FILES
    shutil.rmtree(shipped / "unet")
    assert install_shapes(tmp_path / "models", said.append) == folder
    assert len(said) == 1


def test_without_its_files_or_diffusers_there_is_none(
    monkeypatch: pytest.MonkeyPatch, shipped: Path, tmp_path: Path
) -> None:
    assert bundled_shapes() == shipped
    with monkeypatch.context() as patch:
        patch.setattr(demo_shapes, "is_installed", lambda package: package != "diffusers")
        assert install_shapes(tmp_path / "models", silent) is None
    (shipped / MANIFEST).unlink()
    assert install_shapes(tmp_path / "models", silent) is None
    assert not (tmp_path / "models").exists()


def test_another_file_than_the_known_one_is_refused_and_nothing_is_left(shipped: Path, tmp_path: Path) -> None:
    (shipped / "model_index.json").write_bytes(b"[]")
    with pytest.raises(DemoError, match="sha256 differs"):
        install_shapes(tmp_path / "models", silent)
    (shipped / "model_index.json").unlink()
    with pytest.raises(DemoError, match="cannot be copied"):
        install_shapes(tmp_path / "models", silent)
    (shipped / MANIFEST).write_text("nothing\n")
    with pytest.raises(DemoError, match="reinstall allm"):
        install_shapes(tmp_path / "models", silent)
    assert files(tmp_path / "models") == set()
