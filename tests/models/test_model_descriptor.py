"""Descriptors: only from the registration and the file's own metadata."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from services.models.descriptor import describe_gguf
from services.rpc.errors import ModelInvalid
from tests.demo_model import demo_model
from tests.models.gguf_file import entry, header, llama


def test_the_demo_model() -> None:
    path = demo_model()
    found = describe_gguf("demo", path)
    assert (found.id, found.modality, found.format, found.architecture) == ("demo", "text", "gguf", "llama")
    assert found.capabilities == {"chat"}
    assert (found.primary, found.files) == (path, (path,))
    assert found.size == path.stat().st_size
    assert found.context_tokens == 8192
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.id = "other"  # type: ignore[misc]


def test_the_files_name_decides_nothing(tmp_path: Path) -> None:
    path = llama(tmp_path / "gemma-27b-Q4.bin", architecture="qwen3", context=99)
    found = describe_gguf("m", path)
    assert (found.architecture, found.context_tokens, found.size) == ("qwen3", 99, path.stat().st_size)


def test_a_missing_file_is_an_invalid_model_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    with pytest.raises(ModelInvalid, match=f"{path}: No such file"):
        describe_gguf("m", path)


def test_a_damaged_file_is_an_invalid_model_that_names_it(tmp_path: Path) -> None:
    path = llama(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelInvalid, match=f"{path} is cut off"):
        describe_gguf("m", path)


def test_a_file_must_name_its_architecture(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header(entry("general.name", 8, "x")))
    with pytest.raises(ModelInvalid, match=r"general\.architecture"):
        describe_gguf("m", path)
