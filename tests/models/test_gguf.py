"""GGUF headers: a real one, hand-built ones, and every kind of damage."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from services.models.gguf import GgufError, GgufHeader, read_header
from tests.demo_model import demo_model
from tests.models.gguf_file import ARRAY, FORMATS, STRING, entry, header, text


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
    assert found.size == demo_model().stat().st_size
    assert "im_start" in found.metadata["tokenizer.chat_template"]
    assert found.metadata["tokenizer.ggml.tokens"] == 49152  # of an array, only its length


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_of_value(tmp_path: Path, version: int) -> None:
    contents = {0: 255, 1: -128, 2: 65535, 3: -32768, 4: 2**32 - 1, 5: -(2**31), 6: 0.5, 7: True, 10: 2**64 - 1}
    contents |= {11: -(2**63), 12: 1e300}
    assert set(contents) == set(FORMATS)
    entries = [entry(f"key.{kind}", kind, content) for kind, content in contents.items()]
    entries.append(entry("key.text", STRING, "größer 😀"))
    found = read(tmp_path, header(*entries, version=version, tensors=7))
    assert found.metadata == {f"key.{kind}": content for kind, content in contents.items()} | {"key.text": "größer 😀"}
    assert found.tensors == 7


def test_arrays_are_skipped_and_only_counted(tmp_path: Path) -> None:
    entries = [
        entry("numbers", ARRAY, (12, [1.0, 2.0, 3.0])),
        entry("words", ARRAY, (STRING, ["a", "", "ccc", "größer"])),
        entry("none", ARRAY, (STRING, [])),
        entry("after", 4, 42),
    ]
    found = read(tmp_path, header(*entries))
    assert found.metadata == {"numbers": 3, "words": 4, "none": 0, "after": 42}


def test_what_follows_the_header_is_not_read(tmp_path: Path) -> None:
    found = read(tmp_path, header(entry("a", 4, 1), tensors=3) + b"\xff" * 1000)
    assert (found.metadata, found.tensors) == ({"a": 1}, 3)


def test_a_header_that_says_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, header())
    assert (found.architecture, found.context_length) == ("", 0)


@pytest.mark.parametrize(
    ("kind", "content", "tokens"),
    [
        (4, 4096, 4096),
        (10, 2**31 - 1, 2**31 - 1),
        (10, 2**31, 0),
        (10, 2**64 - 1, 0),
        (5, -1, 0),
        (4, 0, 0),
        (6, 4096.0, 0),
        (STRING, "4096", 0),
    ],
)
def test_a_context_length_that_cannot_be_counts_as_not_told(
    tmp_path: Path, kind: int, content: Any, tokens: int
) -> None:
    """Protobuf's int32 would refuse it later, in the answer to another request."""
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
def test_other_files_are_told_apart(tmp_path: Path, data: bytes) -> None:
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
)


def test_a_header_cut_off_at_any_byte_is_told_so(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE).architecture == "llama"
    for length in range(len(WHOLE)):
        assert "cut off" in refusal(tmp_path, WHOLE[:length]), length


HUGE = 2**64 - 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header(count=HUGE), "claims"),
        (header(tensors=HUGE), "claims"),
        (header(count=1_000_000), "cut off"),
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
    ],
)
def test_hostile_numbers_are_refused_without_the_memory_they_ask_for(tmp_path: Path, data: bytes, words: str) -> None:
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
        tensors = rng.randint(0, 1000)
        found = read(tmp_path, header(*entries, tensors=tensors))
        assert (found.metadata, found.tensors) == (expected, tensors)


def test_random_damage_is_read_or_refused_but_never_a_crash(tmp_path: Path) -> None:
    rng = random.Random(5)  # noqa: S311
    refused = 0
    for _ in range(2000):
        data = bytearray(WHOLE)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(4, len(data))] = rng.randrange(256)
        try:
            found = read(tmp_path, bytes(data))
        except GgufError:
            refused += 1
        else:
            assert isinstance(found.architecture, str)
            assert 0 <= found.context_length < 2**31
    assert 300 < refused < 2000
