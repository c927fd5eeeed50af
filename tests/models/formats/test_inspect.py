"""Inspections: the format, the files of each source, and the files that are never read."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.errors import InvalidRequest, ModelInvalid
from services.models.descriptor import FORMATS
from services.models.formats.inspect import guess, inspect
from tests.case import case
from tests.demo_model import demo_model
from tests.models.formats.handmade_models import (
    LIE,
    WatchedTree,
    local,
    paths,
    refusal,
    write_ctranslate2,
    write_gguf,
    write_json,
    write_pipeline,
    write_safetensors,
    write_split,
    write_text_model,
    write_whisper,
)


def everything(folder: Path) -> Path:
    """Writes a folder with a model of every format, which is bad practice."""
    write_pipeline(folder)
    write_text_model(folder)
    write_gguf(folder / "m.gguf", architecture="qwen3")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "modeling_llama.py").write_text("raise SystemExit")
    return folder


def test_the_demo_model(tmp_path: Path) -> None:
    path = demo_model()
    tree = local(path.parent)
    found = inspect(tree, "gguf", path.name)
    assert (found.format, found.modality, found.architecture) == ("gguf", "text", "llama")
    assert (found.capabilities, found.context_tokens, found.primary) == ({"chat"}, 8192, path.name)
    assert [(file.path, file.size) for file in found.files] == [(path.name, path.stat().st_size)]
    facts = found.facts("demo")
    assert (facts.id, facts.size) == ("demo", path.stat().st_size)
    assert found.manifest(tree).folder == str(path.parent)


def test_the_demo_model_cut_off_by_a_byte(tmp_path: Path) -> None:
    size = demo_model().stat().st_size
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(demo_model().read_bytes()[:-1])
    assert f"cut.gguf is cut off: it has {size - 1} bytes; by its header it must have {size}" in refusal(
        tmp_path, "gguf"
    )


def test_given_format_counts_despite_other_files(tmp_path: Path) -> None:
    tree = local(everything(tmp_path))
    gguf, text, image = inspect(tree, "gguf"), inspect(tree, "safetensors"), inspect(tree, "diffusers")
    assert (gguf.format, gguf.architecture, paths(gguf)) == ("gguf", "qwen3", ["m.gguf"])
    assert (text.format, text.architecture) == ("safetensors", "llama")
    assert paths(text) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (image.format, image.architecture) == ("diffusers", "StableDiffusionPipeline")
    assert not {"m.gguf", "model.safetensors", "config.json"} & set(paths(image))


@pytest.mark.parametrize(
    ("format", "write"),
    [
        ("gguf", write_split),
        ("safetensors", write_text_model),
        ("whisper", write_whisper),
        ("whisper", write_ctranslate2),
        ("diffusers", write_pipeline),
    ],
)
def test_a_metadata_file_that_lies_is_not_opened_and_not_part_of_the_model(tmp_path: Path, format, write) -> None:
    write(tmp_path)
    write_json(tmp_path / "metadata.json", LIE)
    tree = WatchedTree(tmp_path)
    found = inspect(tree, format)
    assert tree.opened, "the tree would have noticed"
    assert "metadata.json" in tree.files
    assert not [path for path in (*tree.opened, *paths(found)) if "metadata" in path]
    assert found.format == format
    assert found.architecture != LIE["architecture"]
    assert paths(found) == sorted(paths(found))
    manifest = found.manifest(tree)
    assert (manifest.repository, manifest.revision, manifest.folder) == (tree.repository, tree.revision, "")


@pytest.mark.parametrize("format", ["", "GGUF", "onnx", "safetensors_cpp", "x" * 10_000])
def test_unknown_format_is_reported_with_the_known_ones(tmp_path: Path, format: str) -> None:
    write_text_model(tmp_path)
    message = refusal(tmp_path, format, kind=InvalidRequest)
    assert all(known in message for known in FORMATS)
    assert len(message) < 300


def test_a_format_of_folders_takes_no_single_file(tmp_path: Path) -> None:
    everything(tmp_path)
    with pytest.raises(InvalidRequest, match="takes a folder") as caught:
        inspect(local(tmp_path), "safetensors", "model.safetensors")
    assert caught.value.param == "source"


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


def test_all_problems_are_reported(tmp_path: Path) -> None:
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


def test_pickle_next_to_a_language_model_is_not_whisper(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    (tmp_path / "optimizer.pt").write_bytes(b"")
    assert guess(local(tmp_path)) == [("safetensors", "")]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model_type": 5}'])
def test_invalid_config_is_reported_by_the_registration(tmp_path: Path, content: str) -> None:
    write_text_model(tmp_path)
    (tmp_path / "config.json").write_text(content)
    assert guess(local(tmp_path)) == [("safetensors", "")]


def test_only_the_config_is_opened(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    write_gguf(tmp_path / "m.gguf")
    tree = WatchedTree(tmp_path)
    guess(tree)
    assert tree.opened == ["config.json"]


def test_split_with_a_wrong_count_is_reported(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m-00005-of-00003.gguf")
    with pytest.raises(ModelInvalid, match=r"m-00005-of-00003\.gguf is shard 5 of 3 by its name"):
        guess(local(tmp_path))
