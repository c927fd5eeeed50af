"""The model file of CTranslate2: a Whisper model, and complete."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from services.errors import ModelInvalid
from services.models.formats.ctranslate2 import check_model
from tests.models.formats.handmade_models import WatchedTree, ctranslate2, local


def check(folder: Path, data: bytes) -> None:
    (folder / "model.bin").write_bytes(data)
    check_model(local(folder), "model.bin")


def test_a_whole_file(tmp_path: Path) -> None:
    check(tmp_path, ctranslate2())
    check(tmp_path, ctranslate2(variables=0))


def test_file_truncated_at_any_byte_is_reported(tmp_path: Path) -> None:
    whole = ctranslate2()
    for length in range(len(whole)):
        with pytest.raises(ModelInvalid, match=rf"model\.bin is cut off: it has {length} bytes and must have"):
            check(tmp_path, whole[:length])


def test_another_kind_of_model(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"model\.bin holds 'TransformerSpec', not a Whisper model"):
        check(tmp_path, ctranslate2("TransformerSpec"))


@pytest.mark.parametrize("version", [5, 7])
def test_another_version_is_accepted_without_a_look_inside(tmp_path: Path, version: int) -> None:
    check(tmp_path, struct.pack("<I", version) + b"whatever")


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [(4 + 2 + 12 + 4, 2**32 - 1, "claims 4294967295 variables"), (43, 255, "claims 255 dimensions")],
)
def test_hostile_numbers(tmp_path: Path, at: int, value: int, words: str) -> None:
    data = bytearray(ctranslate2())
    struct.pack_into("<I" if value > 255 else "<B", data, at, value)
    with pytest.raises(ModelInvalid, match=words):
        check(tmp_path, bytes(data))


def test_random_damage_is_read_or_refused_but_never_a_crash(tmp_path: Path) -> None:
    rng = random.Random(13)  # noqa: S311
    whole = ctranslate2()
    refused = 0
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            check(tmp_path, bytes(data))
        except ModelInvalid:
            refused += 1
    assert 50 < refused < 500


def test_only_the_beginning_of_a_remote_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(ctranslate2(variables=1000))
    tree = WatchedTree(tmp_path)
    check_model(tree, "model.bin")
    assert tree.bytes_read < 100
