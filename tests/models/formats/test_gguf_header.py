"""GGUF headers: a real one, hand-built ones, and every kind of damage."""

from __future__ import annotations

import io
import random
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from services.models.formats.gguf_header import (
    BLOCK,
    MAX_HEADER,
    MAX_LIST,
    MAX_LISTS,
    TENSOR_TYPES,
    GgufError,
    GgufHeader,
    read_header,
    read_header_from,
)
from tests.case import case
from tests.demo_model import demo_model
from tests.models.formats.handmade_models import damaged
from tests.models.gguf_file import ARRAY, FORMATS, STRING, entry, header, tensor, text, with_weights


def read(folder: Path, data: bytes) -> GgufHeader:
    path = folder / "m.gguf"
    path.write_bytes(data)
    return read_header(path)


def refusal(folder: Path, data: bytes) -> str:
    with pytest.raises(GgufError) as caught:
        read(folder, data)
    assert str(folder / "m.gguf") in str(caught.value), "the file is named"
    return str(caught.value)


def test_the_demo_models_header() -> None:
    found = read_header(demo_model())
    assert found.architecture == "llama"
    assert found.context_length == 8192
    assert found.tensors == 272
    assert found.size == found.needed == demo_model().stat().st_size
    assert "im_start" in found.metadata["tokenizer.chat_template"]
    assert found.metadata["tokenizer.ggml.tokens"] == 49152  # the length only, for an array


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_of_value(tmp_path: Path, version: int) -> None:
    contents = {0: 255, 1: -128, 2: 65535, 3: -32768, 4: 2**32 - 1, 5: -(2**31), 6: 0.5, 7: True, 10: 2**64 - 1}
    contents |= {11: -(2**63), 12: 1e300}
    assert set(contents) == set(FORMATS)
    entries = [entry(f"key.{kind}", kind, content) for kind, content in contents.items()]
    entries.append(entry("key.text", STRING, "größer 😀"))
    found = read(tmp_path, header(*entries, version=version))
    assert found.metadata == {f"key.{kind}": content for kind, content in contents.items()} | {"key.text": "größer 😀"}


def test_arrays_are_skipped_and_only_counted(tmp_path: Path) -> None:
    entries = [
        entry("numbers", ARRAY, (12, [1.0, 2.0, 3.0])),
        entry("words", ARRAY, (STRING, ["a", "", "ccc", "größer"])),
        entry("none", ARRAY, (STRING, [])),
        entry("after", 4, 42),
    ]
    found = read(tmp_path, header(*entries))
    assert found.metadata == {"numbers": 3, "words": 4, "none": 0, "after": 42}


def test_short_lists_of_whole_numbers_are_kept_and_only_so_many(tmp_path: Path) -> None:
    entries = [
        entry("heads", ARRAY, (4, [8, 0, 8])),
        entry("signed", ARRAY, (5, [-1, 2])),
        entry("long", ARRAY, (0, [1] * (MAX_LIST + 1))),
        entry("words", ARRAY, (STRING, ["a"])),
    ]
    found = read(tmp_path, header(*entries))
    assert found.lists == {"heads": (8, 0, 8), "signed": (-1, 2)}
    assert found.metadata == {"heads": 3, "signed": 2, "long": MAX_LIST + 1, "words": 1}
    many = header(*(entry(f"list.{number}", ARRAY, (4, [number])) for number in range(MAX_LISTS + 5)))
    found = read(tmp_path, many)
    assert (len(found.lists), len(found.metadata)) == (MAX_LISTS, MAX_LISTS + 5)


def test_data_after_the_header_is_not_read(tmp_path: Path) -> None:
    found = read(tmp_path, header(entry("a", 4, 1), tensors=[tensor("t", [4])]) + b"\xff" * 1000)
    assert (found.metadata, found.tensors) == ({"a": 1}, 1)


def test_a_header_that_says_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, header())
    assert (found.architecture, found.context_length) == ("", 0)


def test_impossible_context_length_counts_as_missing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Protobuf's int32 would refuse it later, in the answer to another request."""
    for kind, content, tokens in [
        (4, 4096, 4096),
        (10, 2**31 - 1, 2**31 - 1),
        (10, 2**31, 0),
        (10, 2**64 - 1, 0),
        (5, -1, 0),
        (4, 0, 0),
        (6, 4096.0, 0),
        (STRING, "4096", 0),
    ]:
        with case(kind=kind, content=content, tokens=tokens):
            tmp_path = tmp_path_factory.mktemp("case")
            entries = [entry("general.architecture", STRING, "llama"), entry("llama.context_length", kind, content)]
            assert read(tmp_path, header(*entries)).context_length == tokens


def test_text_that_is_no_utf8_is_replaced(tmp_path: Path) -> None:
    bad = text("general.name") + struct.pack("<I", STRING) + text(b"a\xffb")
    assert read(tmp_path, header(bad)).metadata["general.name"] == "a\ufffdb"


def test_a_missing_file_a_folder_and_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="No such file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(GgufError, match="Is a directory"):
        read_header(tmp_path)
    assert "cut off" in refusal(tmp_path, b"")


@pytest.mark.parametrize(
    "data", [b"GGML" + bytes(20), b"PK\x03\x04" + bytes(20), b"<!DOCTYPE html>", b"version https://"]
)
def test_other_files_are_distinguished(tmp_path: Path, data: bytes) -> None:
    assert "is not a GGUF file" in refusal(tmp_path, data)


@pytest.mark.parametrize("version", [0, 1, 4, struct.unpack(">I", struct.pack("<I", 3))[0]])
def test_other_versions_and_the_other_byte_order_are_refused(tmp_path: Path, version: int) -> None:
    assert f"GGUF version {version}" in refusal(tmp_path, header(version=version))


WHOLE = header(
    entry("general.architecture", STRING, "llama"),
    entry("llama.context_length", 4, 2048),
    entry("words", ARRAY, (STRING, ["a", "bb"])),
    entry("numbers", ARRAY, (3, [1, 2, 3])),
    entry("flag", 7, False),
    tensors=[tensor("a.weight", [32, 3], 2, 0), tensor("b.weight", [7], 0, 64)],
)


def test_header_truncated_at_any_byte_is_reported(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE).architecture == "llama"
    for length in range(len(WHOLE)):
        assert "cut off" in refusal(tmp_path, WHOLE[:length]), length


HUGE = 2**64 - 1


def test_hostile_numbers_are_refused_without_the_memory_they_ask_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    for data, words in [
        (header(count=HUGE), "claims"),
        (header(tensor_count=HUGE), "claims"),
        (header(count=1_000_000), "claims"),
        (header(count=100_000), "cut off"),
        (header(tensor_count=16_000_000), "cut off"),
        (header(tensors=[struct.pack("<Q", HUGE)]), "claims"),
        (header(tensors=[text("t") + struct.pack("<I", 5)]), "claims 5 dimensions"),
        (header(tensors=[text("t") + struct.pack("<I", HUGE % 2**32)]), "dimensions"),
        (header(tensors=[tensor("t", [HUGE, HUGE, HUGE, HUGE])]), "claims the shape"),
        (header(tensors=[tensor("t", [31], 2)]), "claims the shape"),
        (header(tensors=[tensor("t", [32], 0, 33)]), "begins at 33"),
        (header(entry("general.alignment", 4, 48)), "general.alignment"),
        (header(entry("general.alignment", 4, 0)), "general.alignment"),
        (header(entry("general.alignment", STRING, "32")), "general.alignment"),
        (header(entry("general.alignment", 6, 32.0)), "general.alignment"),
        (header(struct.pack("<Q", HUGE)), "claims"),
        (header(struct.pack("<Q", 60_000_000) + b"short"), "cut off"),
        (header(text("k") + struct.pack("<IQ", STRING, HUGE)), "claims"),
        (header(text("k") + struct.pack("<IIQ", ARRAY, 4, HUGE)), "claims"),
        (header(text("k") + struct.pack("<IIQ", ARRAY, 12, 15_000_000)), "cut off"),
        (header(text("k") + struct.pack("<IIQ", ARRAY, STRING, 15_000_000)), "cut off"),
        (header(text("k") + struct.pack("<IIQQ", ARRAY, STRING, 1, HUGE)), "cut off"),
        (header(text("k") + struct.pack("<I", 13)), "unknown value type 13"),
        (header(text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1)), "an array of type 9"),
        (header(text("k") + struct.pack("<IIQ", ARRAY, 77, 1)), "an array of type 77"),
    ]:
        with case(data=data, words=words):
            tmp_path = tmp_path_factory.mktemp("case")
            tracemalloc.start()
            try:
                assert words in refusal(tmp_path, data)
                assert tracemalloc.get_traced_memory()[1] < 80 * 1024 * 1024
            finally:
                tracemalloc.stop()


def test_random_headers_come_back_as_they_were_written(tmp_path: Path) -> None:
    rng = random.Random(3)  # noqa: S311
    bounds = {0: (0, 255), 1: (-128, 127), 2: (0, 65535), 3: (-(2**15), 2**15 - 1), 4: (0, 2**32 - 1)}
    bounds |= {5: (-(2**31), 2**31 - 1), 10: (0, 2**64 - 1), 11: (-(2**63), 2**63 - 1)}

    def scalar(kind: int) -> Any:
        if kind == STRING:
            return "".join(rng.choices("aé😀\0\n", k=rng.randint(0, 30)))
        return rng.randint(*bounds[kind])

    for _ in range(100):
        expected: dict[str, Any] = {}
        entries = []
        for at in range(rng.randint(0, 12)):
            kind = rng.choice([*bounds, STRING, ARRAY])
            if kind == ARRAY:
                of = rng.choice([*bounds, STRING])
                items = [scalar(of) for _ in range(rng.randint(0, 20))]
                content, expected[f"k{at}"] = (of, items), len(items)
            else:
                content = expected[f"k{at}"] = scalar(kind)
            entries.append(entry(f"k{at}", kind, content))
        tensors = [tensor(scalar(STRING), [rng.randint(0, 9) for _ in range(rng.randint(0, 4))]) for _ in range(9)]
        found = read(tmp_path, header(*entries, tensors=tensors))
        assert (found.metadata, found.tensors) == (expected, 9)


def test_random_damage_is_read_or_refused_but_never_a_crash(tmp_path: Path) -> None:
    refused = 0
    for data in damaged(WHOLE, 2000, seed=5, start=4):
        try:
            found = read(tmp_path, data)
        except GgufError:
            refused += 1
        else:
            assert isinstance(found.architecture, str)
            assert 0 <= found.context_length < 2**31
    assert 300 < refused < 2000


# --- the minimum size of a file


def test_a_file_must_reach_to_the_end_of_its_last_tensor(tmp_path_factory: pytest.TempPathFactory) -> None:
    for tensors, weights in [
        ([("a", [3], 0, 0)], 12),
        ([("a", [3], 0, 0), ("b", [5], 0, 32)], 52),
        ([("b", [5], 0, 32), ("a", [3], 0, 0)], 52),
        ([("a", [256, 2], 12, 0)], 288),
        ([("a", [32, 3, 2], 8, 0), ("b", [1], 24, 224)], 225),
        ([("a", [], 0, 0)], 4),
        ([("a", [0, 5], 0, 0)], 0),
    ]:
        with case(tensors=tensors, weights=weights):
            tmp_path = tmp_path_factory.mktemp("case")
            head = header(tensors=[tensor(*one) for one in tensors])
            needed = len(with_weights(head, weights)) if weights else len(head)
            assert read(tmp_path, head).needed == needed
            whole = read(tmp_path, with_weights(head, weights))
            assert whole.size >= whole.needed == needed


def test_the_weights_begin_where_the_alignment_says(tmp_path: Path) -> None:
    for alignment in (1, 8, 64, 4096):
        head = header(entry("general.alignment", 4, alignment), tensors=[tensor("a", [3], 0, 0)])
        assert read(tmp_path, head).needed == len(with_weights(head, 12, alignment))


def test_a_type_of_the_future_is_accepted_without_a_size(tmp_path: Path) -> None:
    assert read(tmp_path, header(tensors=[tensor("a", [3], 0, 0), tensor("b", [77], 9999, 32)])).needed == 0


def test_the_types_are_those_of_the_pinned_library() -> None:
    """The library runs in a separate process, because an unknown type number may abort it."""
    program = """
import ctypes, pathlib, sys, llama_cpp
folder = pathlib.Path(llama_cpp.__file__).parent / "lib"
library = ctypes.CDLL(str(next(path for path in folder.iterdir() if "ggml-base" in path.name)))
library.ggml_blck_size.restype, library.ggml_type_size.restype = ctypes.c_int64, ctypes.c_size_t
for kind in range(int(sys.argv[1])):
    print(kind, library.ggml_blck_size(kind), library.ggml_type_size(kind))
"""
    count = max(TENSOR_TYPES) + 1
    done = subprocess.run([sys.executable, "-c", program, str(count)], capture_output=True, text=True, check=True)
    reported = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert {kind: (numbers, size) for kind, numbers, size in reported if size} == TENSOR_TYPES


# --- file objects


class Remote(io.BytesIO):
    """A file that returns at most a thousand bytes per read, and counts the returned bytes."""

    given = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(min(1000, size if size is not None and size >= 0 else 1000))
        self.given += len(data)
        return data


def test_only_the_needed_parts_of_a_remote_file_are_read() -> None:
    numbers = (12, [0.5] * (BLOCK // 2))  # four blocks that the reader skips
    head = header(entry("a", ARRAY, numbers), entry("general.architecture", STRING, "llama"))
    data = head + bytes(4 * BLOCK)
    file = Remote(data)
    found = read_header_from(file, "far.gguf", len(data))
    assert (found.architecture, found.metadata["a"], found.size) == ("llama", BLOCK // 2, len(data))
    assert file.given <= 2 * BLOCK


def test_a_file_that_is_shorter_than_it_was_said_to_be_is_cut_off() -> None:
    with pytest.raises(GgufError, match=r"far\.gguf is cut off"):
        read_header_from(Remote(WHOLE[:-1]), "far.gguf", len(WHOLE))


def test_a_header_has_an_end(tmp_path: Path) -> None:
    """Reading a sparse file without a limit would take hours."""
    path = tmp_path / "m.gguf"
    path.write_bytes(header(text("k") + struct.pack("<IIQ", ARRAY, 12, 15_000_000)) + text("l"))
    with path.open("r+b") as file:
        file.truncate(2**33)
    assert read_header(path).metadata == {"k": 15_000_000}
    entries = [text(f"k{at}") + struct.pack("<IIQ", ARRAY, 12, 15_000_000) for at in range(2)]
    path.write_bytes(header(entries[0], count=2))
    with path.open("r+b") as file:
        file.seek(path.stat().st_size + 15_000_000 * 8)
        file.write(entries[1])
        file.truncate(2**33)
    with pytest.raises(GgufError, match=f"its header is larger than {MAX_HEADER} bytes"):
        read_header(path)
