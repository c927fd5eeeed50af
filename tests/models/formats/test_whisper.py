"""Whisper models in three layouts, distinguished without guessing."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.errors import InvalidRequest
from services.models.formats.inspect import inspect
from tests.models.formats.handmade_models import (
    checkpoint,
    checkpoint_pickle,
    local,
    paths,
    refusal,
    write_ctranslate2,
    write_json,
    write_safetensors,
    write_shards,
    write_text_model,
    write_whisper,
)
from tests.whisper_weights import base_ct2, tiny_en_ct2, tiny_en_pt

BOTH = {"transcription", "translation"}


# --- OpenAI


def test_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "tiny.pt").write_bytes(checkpoint())
    for name in ("", "tiny.pt"):
        found = inspect(local(tmp_path), "whisper", name)
        assert (found.format, found.modality, found.architecture) == ("whisper", "audio", "whisper")
        assert (found.capabilities, found.context_tokens, found.primary) == (BOTH, 0, "tiny.pt")
        assert paths(found) == ["tiny.pt"]


@pytest.mark.parametrize(
    ("name", "vocabulary", "capabilities"),
    [
        ("tiny.pt", 51865, BOTH),
        ("tiny.pt", 51864, {"transcription"}),
        ("tiny.en.pt", 51866, BOTH),
        ("tiny.pt", None, BOTH),
        ("tiny.en.pt", None, {"transcription"}),
    ],
)
def test_english_alone_is_not_translated(
    tmp_path: Path, name: str, vocabulary: int | None, capabilities: set[str]
) -> None:
    """The name counts only when the checkpoint does not say."""
    (tmp_path / name).write_bytes(checkpoint(checkpoint_pickle(vocabulary=vocabulary)))
    assert inspect(local(tmp_path), "whisper").capabilities == capabilities


def test_several_checkpoints_are_ambiguous_until_one_is_named(tmp_path: Path) -> None:
    for name in ("base.pt", "tiny.pt"):
        (tmp_path / name).write_bytes(checkpoint())
    assert "ambiguous: base.pt, tiny.pt. Name the file in the source" in refusal(tmp_path, "whisper")
    assert inspect(local(tmp_path), "whisper", "base.pt").primary == "base.pt"


def test_a_checkpoint_that_is_named_must_be_there(tmp_path: Path) -> None:
    assert "tiny.pt is missing" in refusal(tmp_path, "whisper", "tiny.pt")


def test_a_checkpoint_that_would_run_code(tmp_path: Path) -> None:
    (tmp_path / "tiny.pt").write_bytes(checkpoint(checkpoint_pickle(extra=b"cos\nsystem\n")))
    assert "os.system" in refusal(tmp_path, "whisper")


@pytest.mark.parametrize("name", ["model.safetensors", "model.bin", "ggml-tiny.bin", "tiny.gguf"])
def test_no_other_single_file_is_taken(tmp_path: Path, name: str) -> None:
    write_whisper(tmp_path)
    assert f"{name} is not an OpenAI checkpoint" in refusal(tmp_path, "whisper", name, kind=InvalidRequest)


# --- CTranslate2


def test_a_ctranslate2_folder(tmp_path: Path) -> None:
    found = inspect(local(write_ctranslate2(tmp_path)), "whisper")
    assert (found.architecture, found.capabilities, found.primary) == ("whisper_ctranslate2", BOTH, "")
    assert paths(found) == ["config.json", "model.bin", "tokenizer.json", "vocabulary.json"]


@pytest.mark.parametrize(("tokens", "capabilities"), [(51864, {"transcription"}), (51865, BOTH), (51866, BOTH)])
def test_its_vocabulary_tells_how_many_languages(tmp_path: Path, tokens: int, capabilities: set[str]) -> None:
    write_ctranslate2(tmp_path, tokens)
    assert inspect(local(tmp_path), "whisper").capabilities == capabilities
    (tmp_path / "vocabulary.json").unlink()
    (tmp_path / "vocabulary.txt").write_text("token\n" * tokens)
    found = inspect(local(tmp_path), "whisper")
    assert found.capabilities == capabilities
    assert "vocabulary.txt" in paths(found)


def test_missing_files_of_a_ctranslate2_folder_are_named(tmp_path: Path) -> None:
    write_ctranslate2(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "vocabulary.json").unlink()
    expected = "config.json, vocabulary.json or vocabulary.txt are missing"
    assert expected in refusal(tmp_path, "whisper")
    write_ctranslate2(tmp_path)
    (tmp_path / "model.bin").unlink()
    assert "model.bin is missing" in refusal(tmp_path, "whisper")


def test_a_ctranslate2_model_that_is_cut_off(tmp_path: Path) -> None:
    write_ctranslate2(tmp_path)
    path = tmp_path / "model.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert "model.bin is cut off" in refusal(tmp_path, "whisper")


@pytest.mark.parametrize(("name", "content"), [("config.json", []), ("vocabulary.json", {})])
def test_its_documents_must_be_what_they_are(tmp_path: Path, name: str, content: object) -> None:
    write_ctranslate2(tmp_path)
    write_json(tmp_path / name, content)
    assert refusal(tmp_path, "whisper").startswith(f"{name} is not a JSON ")


def test_real_ctranslate2_folders() -> None:
    for folder, capabilities in ((tiny_en_ct2(), {"transcription"}), (base_ct2(), BOTH)):
        found = inspect(local(folder), "whisper")
        assert (found.architecture, found.capabilities, found.primary) == ("whisper_ctranslate2", capabilities, "")
        assert {"config.json", "model.bin", "tokenizer.json", "vocabulary.txt"} == {*paths(found)}


def test_a_real_checkpoint() -> None:
    path = tiny_en_pt()
    found = inspect(local(path.parent), "whisper", path.name)
    assert (found.architecture, found.capabilities, found.primary) == ("whisper", {"transcription"}, path.name)


# --- transformers


@pytest.mark.parametrize(("vocabulary", "capabilities"), [(51864, {"transcription"}), (51865, BOTH), (51866, BOTH)])
def test_a_folder_of_transformers(tmp_path: Path, vocabulary: int, capabilities: set[str]) -> None:
    write_whisper(tmp_path, vocabulary)
    (tmp_path / "normalizer.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    found = inspect(local(tmp_path), "whisper")
    assert (found.architecture, found.capabilities, found.primary) == ("whisper", capabilities, "")
    expected = ["config.json", "model.safetensors", "normalizer.json", "preprocessor_config.json", "tokenizer.json"]
    assert paths(found) == expected


def test_its_variants_give_way(tmp_path: Path) -> None:
    """Published repositories keep 32-bit weights next to 16-bit ones."""
    write_whisper(tmp_path)
    for at in (1, 2):
        write_safetensors(tmp_path / f"model.fp32-0000{at}-of-00002.safetensors")
    write_json(tmp_path / "model.safetensors.index.fp32.json", {})
    assert "model.safetensors" in paths(inspect(local(tmp_path), "whisper"))


def test_its_weights_in_shards(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    shards = write_shards(tmp_path)
    assert {*shards} <= {*paths(inspect(local(tmp_path), "whisper"))}
    (tmp_path / shards[0]).unlink()
    assert f"{shards[0]} is missing" in refusal(tmp_path, "whisper")


def test_missing_files_are_named_together(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors")
    expected = "config.json, preprocessor_config.json or processor_config.json, tokenizer.json are missing"
    assert expected in refusal(tmp_path, "whisper")


def test_its_weights_are_checked(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "model.safetensors is cut off" in refusal(tmp_path, "whisper")


def test_a_language_model_is_no_whisper(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    write_json(tmp_path / "preprocessor_config.json", {})
    assert "says that the model is a llama, not a whisper" in refusal(tmp_path, "whisper")


# --- choice of the layout


def test_a_folder_without_any(tmp_path: Path) -> None:
    (tmp_path / "ggml-tiny.bin").write_bytes(b"x")
    message = refusal(tmp_path, "whisper")
    assert all(word in message for word in (".pt", "model.bin", "model.safetensors"))


def test_several_layouts_are_ambiguous_and_named(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    write_ctranslate2(tmp_path)
    (tmp_path / "tiny.pt").write_bytes(checkpoint())
    message = refusal(tmp_path, "whisper")
    assert "OpenAI: tiny.pt; CTranslate2: model.bin, vocabulary.json; transformers: model.safetensors" in message
    assert paths(inspect(local(tmp_path), "whisper", "tiny.pt")) == ["tiny.pt"], "unless one is named"
