"""The format that an import guesses for a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.errors import ModelInvalid
from services.models.formats.guess import guess
from tests.case import case
from tests.models.formats.handmade_models import (
    LIE,
    WatchedTree,
    local,
    write_ctranslate2,
    write_gguf,
    write_json,
    write_pipeline,
    write_safetensors,
    write_split,
    write_text_model,
    write_whisper,
)


def test_every_format_is_known_by_its_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    for write, expected in [
        (write_text_model, [("safetensors", "")]),
        (write_whisper, [("whisper", "")]),
        (write_ctranslate2, [("whisper", "")]),
        (write_pipeline, [("diffusers", "")]),
        (write_split, [("gguf", "m-00001-of-00003.gguf")]),
        (lambda folder: write_gguf(folder / "sub/m.gguf"), [("gguf", "sub/m.gguf")]),
        (lambda folder: (folder / "tiny.pt").write_bytes(b""), [("whisper", "tiny.pt")]),
    ]:
        with case(write=write, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            write(tmp_path)
            assert guess(local(tmp_path)) == expected


def test_nothing_that_can_be_used(tmp_path: Path) -> None:
    assert guess(local(tmp_path)) == []
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    write_json(tmp_path / "metadata.json", LIE)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "model.bin").write_bytes(b"x")
    write_gguf(tmp_path / "mmproj-F16.gguf")
    assert guess(local(tmp_path)) == []
    write_safetensors(tmp_path / "sub/model.safetensors")
    assert guess(local(tmp_path)) == []


def test_several_are_all_told(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    for name in ("b.gguf", "a.gguf"):
        write_gguf(tmp_path / name)
    assert guess(local(tmp_path)) == [("gguf", "a.gguf"), ("gguf", "b.gguf"), ("safetensors", "")]


def test_several_layouts_of_whisper(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    write_ctranslate2(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "whisper"})
    (tmp_path / "tiny.pt").write_bytes(b"")
    assert guess(local(tmp_path)) == [("whisper", ""), ("whisper", "tiny.pt")]


def test_a_pickle_beside_a_language_model_is_no_whisper(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    (tmp_path / "optimizer.pt").write_bytes(b"")
    assert guess(local(tmp_path)) == [("safetensors", "")]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model_type": 5}'])
def test_a_config_that_is_wrong_is_told_by_the_registration(tmp_path: Path, content: str) -> None:
    write_text_model(tmp_path)
    (tmp_path / "config.json").write_text(content)
    assert guess(local(tmp_path)) == [("safetensors", "")]


def test_only_the_config_is_opened(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    write_gguf(tmp_path / "m.gguf")
    tree = WatchedTree(tmp_path)
    guess(tree)
    assert tree.opened == ["config.json"]


def test_a_split_that_counts_wrongly_is_told(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m-00005-of-00003.gguf")
    with pytest.raises(ModelInvalid, match=r"m-00005-of-00003\.gguf says that it is shard 5 of 3"):
        guess(local(tmp_path))
