"""Headers of safetensors files: valid ones, misleading ones, and every kind of damage."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from services.errors import ModelInvalid
from services.models.formats.safetensors_header import FIRST_READ, MAX_HEADER, Tensor, read_tensors
from tests.case import case
from tests.models.formats.handmade_models import WatchedTree, damaged, local, safetensors, with_header

GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def read(folder: Path, data: bytes) -> frozenset[str]:
    (folder / "m.safetensors").write_bytes(data)
    return frozenset(read_tensors(local(folder), "m.safetensors"))


def message(folder: Path, data: bytes) -> str:
    with pytest.raises(ModelInvalid) as caught:
        read(folder, data)
    assert "m.safetensors" in caught.value.message, "the file is named"
    return caught.value.message


def test_the_names_of_its_tensors(tmp_path: Path) -> None:
    tensors = {"a.weight": ("F32", [2, 3]), "größe": ("BF16", [5]), "scalar": ("I64", []), "none": ("F16", [0, 7])}
    assert read(tmp_path, safetensors(tensors, format="pt")) == set(tensors)


def test_data_types_and_their_sizes(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(safetensors({"a": ("F32", [2, 3]), "b": ("BF16", [5]), "c": ("U8", [0])}))
    found = read_tensors(local(tmp_path), "m.safetensors")
    assert found == {"a": Tensor("F32", 24, (2, 3)), "b": Tensor("BF16", 10, (5,)), "c": Tensor("U8", 0, (0,))}


def test_every_kind_of_number_has_its_size(tmp_path_factory: pytest.TempPathFactory) -> None:
    for dtype, shape, size in [
        ("BOOL", [3], 3),
        ("F8_E4M3", [3], 3),
        ("F4", [4], 2),
        ("F6_E2M3", [4], 3),
        ("C64", [2], 16),
        ("U16", [], 2),
    ]:
        with case(dtype=dtype, shape=shape, size=size):
            tmp_path = tmp_path_factory.mktemp("case")
            right, wrong = (
                with_header(json.dumps({"t": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}), end)
                for end in (size, size + 1)
            )
            assert read(tmp_path, right) == {"t"}
            assert f"has {size + 1} bytes, which does not fit {dtype}" in message(tmp_path, wrong)


def test_a_kind_of_number_of_the_future_is_accepted_without_its_size(tmp_path: Path) -> None:
    entry = {"t": {"dtype": "F3_E1M1", "shape": [8], "data_offsets": [0, 3]}}
    assert read(tmp_path, with_header(json.dumps(entry), 3)) == {"t"}


def test_a_header_may_be_padded(tmp_path: Path) -> None:
    assert read(tmp_path, with_header(json.dumps({"t": GOOD}) + " " * 7, 24)) == {"t"}


def test_tensors_may_be_listed_in_any_order(tmp_path: Path) -> None:
    entries = {"b": {"dtype": "U8", "shape": [2], "data_offsets": [3, 5]}, "a": {"dtype": "U8", "shape": [3]}}
    entries["a"]["data_offsets"] = [0, 3]
    assert read(tmp_path, with_header(json.dumps(entries), 5)) == {"a", "b"}


@pytest.mark.parametrize("cut", [1, 10, 24])
def test_truncated_file_is_reported_with_both_sizes(tmp_path: Path, cut: int) -> None:
    whole = with_header(json.dumps({"t": GOOD}), 24)
    expected = f"m.safetensors is cut off: it has {len(whole) - cut} bytes; by its header it must have {len(whole)}"
    assert message(tmp_path, whole[:-cut]) == expected


def test_a_file_cut_off_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = with_header(json.dumps({"t": GOOD}), 24)
    for length in range(len(whole)):
        message(tmp_path, whole[:length])
    assert "cut off" in message(tmp_path, whole[:30])


def test_overlong_file_is_reported_with_both_sizes(tmp_path: Path) -> None:
    whole = with_header(json.dumps({"t": GOOD}), 24)
    assert f"it has {len(whole) + 1} bytes; by its header it must have {len(whole)}" in message(tmp_path, whole + b"x")


@pytest.mark.parametrize("length", [MAX_HEADER + 1, 2**40, 2**63, 2**64 - 1])
def test_a_huge_header_is_refused_without_the_memory_it_asks_for(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", length))
    with path.open("r+b") as file:
        file.truncate(min(length + 100, 2**41))
    tracemalloc.start()
    try:
        with pytest.raises(ModelInvalid, match=f"claims a header of {length} bytes; at most {MAX_HEADER} are allowed"):
            read_tensors(local(tmp_path), path.name)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


def test_a_header_that_is_longer_than_the_file(tmp_path: Path) -> None:
    text = f"it has 108 bytes; its header alone takes {8 + 5000}"
    assert text in message(tmp_path, struct.pack("<Q", 5000) + bytes(100))


def test_hostile_headers(tmp_path_factory: pytest.TempPathFactory) -> None:
    for header, words in [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "is not a JSON object"),
        ("null", "is not a JSON object"),
        ("{}", "holds no tensors"),
        ('{"__metadata__": {}}', "holds no tensors"),
        (b"\xff\xfe{}", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"t": %s, "t": %s}' % ((json.dumps(GOOD),) * 2), "'t' appears twice"),
        ('{"t": {"dtype": "F32", "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}', "appears twice"),
        ('{"t": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 24]}}', "NaN is not allowed"),
        ('{"t": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, Infinity]}}', "Infinity is not allowed"),
        ('{"t": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 24]}}', "has the shape [inf]"),
        ('{"t": {"dtype": "F32", "shape": [%s], "data_offsets": [0, 24]}}' % ("9" * 5000), "not valid JSON"),
        ('{"t": {"dtype": "F32", "shape": [%s], "data_offsets": [0, 24]}}' % ("9" * 4000), "has the shape"),
    ]:
        with case(header=header, words=words):
            tmp_path = tmp_path_factory.mktemp("case")
            said = message(tmp_path, with_header(header, 24))
            assert words in said
            assert len(said) < 500


WRONG: list[tuple[Any, str]] = [
    (None, "is not an object"),
    ([], "is not an object"),
    ("F32", "is not an object"),
    ({}, "has no dtype"),
    (GOOD | {"dtype": 5}, "has no dtype"),
    (GOOD | {"dtype": ["F32"]}, "has no dtype"),
    (GOOD | {"shape": None}, "has the shape None"),
    (GOOD | {"shape": "23"}, "has the shape '23'"),
    (GOOD | {"shape": [2, 3.0]}, "has the shape"),
    (GOOD | {"shape": [True, 6]}, "has the shape"),
    (GOOD | {"shape": [-2, -3]}, "has the shape"),
    (GOOD | {"shape": [2**63]}, "has the shape"),
    (GOOD | {"shape": [1] * 65}, "has the shape"),
    (GOOD | {"shape": [2, 4]}, "does not fit F32 of [2, 4]"),
    (GOOD | {"shape": [2**62] * 64}, "does not fit F32"),
    (GOOD | {"data_offsets": None}, "has the data_offsets None"),
    (GOOD | {"data_offsets": [0]}, "has the data_offsets"),
    (GOOD | {"data_offsets": [0, 24, 24]}, "has the data_offsets"),
    (GOOD | {"data_offsets": ["0", "24"]}, "has the data_offsets"),
    (GOOD | {"data_offsets": [-24, 0]}, "has the data_offsets"),
    (GOOD | {"data_offsets": {"0": 24}}, "has the data_offsets"),
    (GOOD | {"data_offsets": [24, 0]}, "ends before it begins"),
    (GOOD | {"data_offsets": [8, 32]}, "leaves a gap before it (0)"),
]


def test_an_entry_that_is_wrong_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    for entry, words in WRONG:
        with case(entry=entry, words=words):
            tmp_path = tmp_path_factory.mktemp("case")
            said = message(tmp_path, with_header(json.dumps({"layer.weight": entry}), 24))
            assert words in said
            assert "'layer.weight'" in said


def test_metadata_is_an_object_of_strings(tmp_path_factory: pytest.TempPathFactory) -> None:
    for metadata in [5, [], "x", {"a": 1}, {"a": None}, {"a": {"b": "c"}}]:
        with case(metadata=metadata):
            tmp_path = tmp_path_factory.mktemp("case")
            assert "__metadata__" in message(
                tmp_path, with_header(json.dumps({"__metadata__": metadata, "t": GOOD}), 24)
            )


@pytest.mark.parametrize(("begin", "words"), [(23, "overlaps"), (0, "overlaps"), (25, "leaves a gap")])
def test_tensors_lie_one_after_the_other(tmp_path: Path, begin: int, words: str) -> None:
    entries = {"a": GOOD, "b": GOOD | {"data_offsets": [begin, begin + 24]}}
    assert words in message(tmp_path, with_header(json.dumps(entries), begin + 24))


def test_git_lfs_pointer_is_reported_as_such(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    assert "git lfs pull" in message(tmp_path, pointer)


def test_only_the_header_of_a_remote_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(with_header(json.dumps({"t": {"dtype": "U8", "shape": [2**30], "data_offsets": [0, 2**30]}}), 0))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 2**30)
    tree = WatchedTree(tmp_path)
    assert read_tensors(tree, path.name).keys() == {"t"}
    assert tree.bytes_read <= FIRST_READ


def test_a_header_that_takes_more_than_the_first_read(tmp_path: Path) -> None:
    tensors = {f"model.layers.{at}.mlp.down_proj.weight": ("U8", [1]) for at in range(5000)}
    data = safetensors(tensors)
    assert len(data) > FIRST_READ + 5000
    (tmp_path / "m.safetensors").write_bytes(data)
    assert read_tensors(WatchedTree(tmp_path), "m.safetensors").keys() == set(tensors)


def test_random_damage_is_read_or_refused_but_never_a_crash(tmp_path: Path) -> None:
    refused = 0
    for data in damaged(safetensors({"a": ("F32", [2, 3]), "b": ("BF16", [4])}, format="pt"), 1000, seed=7):
        try:
            read(tmp_path, data)
        except ModelInvalid:
            refused += 1
    assert 300 < refused < 1000
