"""GGUF models: one file or a split set, an unambiguous choice, and no truncated files."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.models.formats.inspect import inspect
from tests.case import case
from tests.models.formats.handmade_models import (
    WatchedTree,
    local,
    paths,
    refusal,
    split_entries,
    write_gguf,
    write_split,
)
from tests.models.gguf_file import ARRAY, STRING, entry, header


def test_one_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "deep/Model-Q4_K_M.gguf", architecture="qwen3")
    found = inspect(local(tmp_path), "gguf")
    assert (found.architecture, found.context_tokens, found.capabilities) == ("qwen3", 2048, {"chat"})
    assert found.primary == "deep/Model-Q4_K_M.gguf"
    assert [(file.path, file.size) for file in found.files] == [(found.primary, path.stat().st_size)]


def test_a_file_that_is_longer_than_it_must_be_is_accepted(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", weights=1000)
    assert inspect(local(tmp_path), "gguf").primary == "m.gguf"


@pytest.mark.parametrize("cut", [1, 64, 128])
def test_truncated_file_is_reported_with_both_sizes(tmp_path: Path, cut: int) -> None:
    whole = write_gguf(tmp_path / "m.gguf").stat().st_size
    write_gguf(tmp_path / "m.gguf", cut=cut)
    expected = f"m.gguf is cut off: it has {whole - cut} bytes; by its header it must have {whole}"
    assert refusal(tmp_path, "gguf") == expected


def test_several_models_are_ambiguous_until_one_is_named(tmp_path: Path) -> None:
    for at in range(12):
        write_gguf(tmp_path / f"m-{at:02}.gguf", architecture=f"arch{at}")
    write_split(tmp_path, "split")
    message = refusal(tmp_path, "gguf")
    assert "13 models is ambiguous: m-00.gguf, m-01.gguf" in message
    assert "m-09.gguf and 3 more. Name the file in the source" in message
    assert "m-10" not in message
    assert inspect(local(tmp_path), "gguf", "m-07.gguf").architecture == "arch7"
    assert paths(inspect(local(tmp_path), "gguf", "split-00002-of-00003.gguf")) == [
        f"split-0000{at}-of-00003.gguf" for at in (1, 2, 3)
    ]


def test_a_folder_without_any(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert "there is no GGUF file" in refusal(tmp_path, "gguf")


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    for name in ("n.gguf", "../m.gguf", "/m.gguf", "./m.gguf"):
        assert f"{name} is missing" in refusal(tmp_path, "gguf", name)


def test_the_name_of_a_file_decides_nothing(tmp_path: Path) -> None:
    write_gguf(tmp_path / "gemma.bin", architecture="phi3")
    assert inspect(local(tmp_path), "gguf", "gemma.bin").architecture == "phi3"


# --- split files


@pytest.mark.parametrize("name", ["", "q/m-00001-of-00003.gguf", "q/m-00003-of-00003.gguf"])
def test_a_split_set_is_one_model_whichever_of_it_is_named(tmp_path: Path, name: str) -> None:
    names = write_split(tmp_path / "q")
    found = inspect(local(tmp_path), "gguf", name)
    assert paths(found) == [f"q/{each}" for each in names]
    assert found.primary == "q/m-00001-of-00003.gguf"
    assert found.facts("m").size == sum(path.stat().st_size for path in (tmp_path / "q").iterdir())


def test_shards_that_are_missing_are_named(tmp_path: Path) -> None:
    names = write_split(tmp_path, count=15)
    for name in names[:13]:
        (tmp_path / name).unlink()
    message = refusal(tmp_path, "gguf")
    assert "m-00001-of-00015.gguf, " in message
    assert "m-00010-of-00015.gguf and 3 more are missing" in message
    write_split(tmp_path, count=15)
    (tmp_path / names[6]).unlink()
    assert "m-00007-of-00015.gguf is missing" in refusal(tmp_path, "gguf", names[0])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_shard_must_be_whole(tmp_path: Path, number: int) -> None:
    names = write_split(tmp_path)
    write_gguf(tmp_path / names[number], *split_entries(number, 3), cut=1)
    assert f"{names[number]} is cut off" in refusal(tmp_path, "gguf")


@pytest.mark.parametrize(
    ("number", "entries", "words"),
    [
        (1, split_entries(0, 3), "split.no 0"),
        (1, split_entries(2, 3), "split.no 2"),
        (1, split_entries(1, 4), "split.count 4"),
        (0, [], "split.no None"),
        (0, [entry("split.no", STRING, "0"), entry("split.count", STRING, "3")], "split.count 3"),
    ],
)
def test_a_shards_header_must_agree_with_its_name(
    tmp_path: Path, number: int, entries: list[bytes], words: str
) -> None:
    names = write_split(tmp_path)
    write_gguf(tmp_path / names[number], *entries)
    message = refusal(tmp_path, "gguf")
    assert f"{names[number]} is shard {number + 1} of 3 by its name" in message
    assert words in message


def test_a_shard_that_was_renamed_is_no_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", *split_entries(0, 3))
    assert "m.gguf is shard 1 of 1 by its name, but its header says split.no 0" in refusal(tmp_path, "gguf")


@pytest.mark.parametrize("count", [0, 1])
def test_a_file_that_says_it_is_not_split(tmp_path: Path, count: int) -> None:
    write_gguf(tmp_path / "m.gguf", *split_entries(0, count))
    assert inspect(local(tmp_path), "gguf").primary == "m.gguf"


def test_all_shards_together_hold_as_many_tensors_as_the_first_says(tmp_path: Path) -> None:
    names = write_split(tmp_path)
    write_gguf(tmp_path / names[0], *split_entries(0, 3, tensors=7))
    assert "there are 7 tensors; all shards together have 6" in refusal(tmp_path, "gguf")


@pytest.mark.parametrize("name", ["m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-00000-of-00000.gguf"])
def test_a_name_that_counts_wrongly(tmp_path: Path, name: str) -> None:
    write_gguf(tmp_path / name)
    assert f"{name} is shard" in refusal(tmp_path, "gguf")
    assert f"{name} is shard" in refusal(tmp_path, "gguf", name)


# --- facts


@pytest.mark.parametrize("architecture", ["bert", "nomic-bert", "jina-bert-v2", "t5encoder"])
def test_an_encoder_embeds(tmp_path: Path, architecture: str) -> None:
    write_gguf(tmp_path / "m.gguf", architecture=architecture)
    assert inspect(local(tmp_path), "gguf").capabilities == {"embeddings"}


@pytest.mark.parametrize(("pooling", "capability"), [(0, "chat"), (3, "embeddings")])
def test_a_decoder_that_says_how_to_pool_embeds(tmp_path: Path, pooling: int, capability: str) -> None:
    write_gguf(tmp_path / "m.gguf", entry("qwen3.pooling_type", 4, pooling), architecture="qwen3")
    assert inspect(local(tmp_path), "gguf").capabilities == {capability}


def test_projector_next_to_a_model_is_not_a_second_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    write_gguf(tmp_path / "mmproj-F16.gguf", architecture="clip")
    found = inspect(local(tmp_path), "gguf")
    assert paths(found) == ["m.gguf"]
    assert "mmproj-F16.gguf is a projector" in refusal(tmp_path, "gguf", "mmproj-F16.gguf")


@pytest.mark.parametrize(("kind", "words"), [("adapter", "an adapter"), ("imatrix", "an importance matrix")])
def test_unrecognised_file_is_reported(tmp_path: Path, kind: str, words: str) -> None:
    write_gguf(tmp_path / "m.gguf", entry("general.type", STRING, kind))
    assert f"m.gguf is {words}, not a model" in refusal(tmp_path, "gguf")


def test_a_file_must_name_its_architecture(tmp_path_factory: pytest.TempPathFactory) -> None:
    for entries in [
        [],
        [entry("general.architecture", STRING, "")],
        [entry("general.architecture", 4, 5)],
        [entry("general.architecture", ARRAY, (STRING, ["llama"]))],
        [entry("general.architecture", STRING, "a b")],
        [entry("general.architecture", STRING, "../llama")],
        [entry("general.architecture", STRING, "x" * 5000)],
    ]:
        with case(entries=entries):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "m.gguf").write_bytes(header(*entries))
            message = refusal(tmp_path, "gguf")
            assert "general.architecture in m.gguf is" in message
            assert len(message) < 300


@pytest.mark.parametrize("data", [b"", b"GGUF", b"GGML" + bytes(100), b"<!DOCTYPE html>" + bytes(100)])
def test_other_files_are_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    assert refusal(tmp_path, "gguf").startswith("m.gguf is ")


def test_only_the_headers_of_a_remote_model_are_read(tmp_path: Path) -> None:
    for name in write_split(tmp_path):
        with (tmp_path / name).open("r+b") as file:
            file.truncate(50 * 2**20)
    tree = WatchedTree(tmp_path)
    inspect(tree, "gguf")
    assert len(tree.opened) == 3
    assert tree.bytes_read <= 3 * 2**20


def write_projector(path: Path, width: int = 64, kind: str = "mlp", *, sees: bool = True) -> Path:
    """Writes the header of a projector for models of that width."""
    data = header(
        entry("general.architecture", STRING, "clip"),
        entry("clip.has_vision_encoder", 7, sees),
        entry("clip.projector_type", STRING, kind),
        entry("clip.vision.projection_dim", 4, width),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_decoder(path: Path, width: int = 64) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header(entry("general.architecture", STRING, "llama"), entry("llama.embedding_length", 4, width)))
    return path


def test_a_model_and_its_projector_are_one_model_that_takes_pictures(tmp_path: Path) -> None:
    write_decoder(tmp_path / "a/model.gguf")
    for name in ("mmproj-F32.gguf", "mmproj-Q8_0.gguf", "mmproj-BF16.gguf"):
        write_projector(tmp_path / "a" / name)
    write_projector(tmp_path / "b/mmproj.gguf")
    found = inspect(local(tmp_path), "gguf", "a/model.gguf")
    assert (found.capabilities, found.primary) == ({"chat", "vision"}, "a/model.gguf")
    assert paths(found) == ["a/mmproj-BF16.gguf", "a/model.gguf"]
    write_projector(tmp_path / "a/model-mmproj-f16.gguf")
    assert paths(inspect(local(tmp_path), "gguf")) == ["a/model-mmproj-f16.gguf", "a/model.gguf"]


def test_a_projector_that_cannot_be_used_leaves_a_text_model(tmp_path: Path) -> None:
    write_decoder(tmp_path / "model.gguf")
    for name, changes in (
        ("wide", {"width": 128}),
        ("audio", {"sees": False}),
        ("unsupported", {"kind": "hunyuanvl"}),
    ):
        with case(projector=name):
            write_projector(tmp_path / "mmproj.gguf", **changes)
            found = inspect(local(tmp_path), "gguf")
            assert (found.capabilities, paths(found)) == ({"chat"}, ["model.gguf"])
    (tmp_path / "mmproj.gguf").write_bytes(b"GGUF")
    assert "mmproj.gguf" in refusal(tmp_path, "gguf")
