"""The bundled embedding model: copied once, only from the known files, and never half."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.models.demo import encoder_demo as demo_encoder
from services.models.demo.encoder_demo import DEMO_ENCODER_ID, FILES, bundled_encoder, install_encoder
from services.models.demo.text_demo import DemoError
from services.models.formats.inspect import inspect
from tests.models.formats.handmade_models import local


def silent(_: str) -> None:
    """Ignores progress."""


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def fake_bundle(folder: Path, *, without: str = "") -> Path:
    """Links the files of the real bundle, except `without`."""
    real = bundled_encoder()
    assert real is not None
    for name in FILES:
        if name != without:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(real / name)
    return folder


def test_it_is_copied_once_whole_and_can_be_registered(tmp_path: Path) -> None:
    said: list[str] = []
    folder = install_encoder(tmp_path, said.append)
    assert folder == tmp_path / DEMO_ENCODER_ID
    assert files(tmp_path) == {f"{DEMO_ENCODER_ID}/{name}" for name in FILES}
    assert len(said) == 1
    before = (folder / "model.safetensors").stat()
    assert install_encoder(tmp_path, said.append) == folder
    assert len(said) == 1
    assert (folder / "model.safetensors").stat() == before
    found = inspect(local(folder), "safetensors")
    assert (found.architecture, found.capabilities, found.context_tokens) == ("bert", frozenset({"embeddings"}), 256)


def test_without_the_wheel_or_torch_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_encoder, "PACKAGE", "no_such_package")
    assert install_encoder(tmp_path, silent) is None
    assert files(tmp_path) == set()


@pytest.mark.parametrize("name", ["tokenizer.json", "1_Pooling/config.json"])
def test_another_file_than_the_known_one_is_refused_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    bundle = fake_bundle(tmp_path / "bundle", without=name)
    monkeypatch.setattr(demo_encoder, "bundled_encoder", lambda: bundle)
    with pytest.raises(DemoError, match="cannot be copied"):
        install_encoder(tmp_path / "models", silent)
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_text("{}")
    with pytest.raises(DemoError, match="sha256 differs"):
        install_encoder(tmp_path / "models", silent)
    assert files(tmp_path / "models") == set()
