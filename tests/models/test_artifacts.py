"""The data file of execution caches, and the allowed publishers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.errors import ModelInvalid
from services.models.artifacts import MAX_DOCUMENT_BYTES, SHIPPED, allowed, check_publishers, load_supported
from services.models.hub.source import HubSource
from services.settings.setting import SettingError
from services.settings.settings import load_settings
from tests.case import case

CACHE: dict[str, Any] = {
    "repository": "nvidia/m-gguf",
    "format": "gguf",
    "runtime": "llama_cpp",
    "devices": ["cpu", "cuda"],
}


def written(folder: Path, *artifacts: Any, source: str = "org/m") -> Path:
    path = folder / "supported.json"
    path.write_text(json.dumps({"models": [{"source": source, "artifacts": list(artifacts)}]}))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ModelInvalid) as caught:
        load_supported(path)
    assert caught.value.message.startswith(f"ALLM_SUPPORTED_MODELS: {path}")
    return caught.value.message


def test_entries_of_a_model_in_the_file(tmp_path: Path) -> None:
    exact = CACHE | {"revision": "v1", "file": "q4/m.gguf"}
    found = load_supported(written(tmp_path, CACHE, exact))
    first, second = found.artifacts_of("org/m")
    assert first.source == HubSource("nvidia/m-gguf", "", "")
    assert (first.format, first.runtime, first.devices) == ("gguf", "llama_cpp", {"cpu", "cuda"})
    assert second.source == HubSource("nvidia/m-gguf", "v1", "q4/m.gguf")
    assert found.artifacts_of("org/other") == ()
    assert found.artifacts_of("Org/m") == (), "names are taken to the letter"


def test_the_file_that_comes_along_is_right_and_names_only_official_publishers() -> None:
    found = load_supported(None)
    sources = [model["source"] for model in json.loads(SHIPPED.read_text())["models"]]
    assert "openai/gpt-oss-20b" in sources
    publishers = load_settings({}).model.publishers
    for source in sources:
        assert all(allowed(known.source.repository, publishers) for known in found.artifacts_of(source))


def test_impossible_value_is_refused_with_its_position(tmp_path_factory: pytest.TempPathFactory) -> None:
    for artifact, words in [
        (CACHE | {"format": "pickle"}, "Invalid enum value 'pickle'"),
        (CACHE | {"devices": []}, "length >= 1"),
        (CACHE | {"devices": ["tpu"]}, "Invalid enum value 'tpu'"),
        (CACHE | {"runtime": ""}, "length >= 1"),
        (CACHE | {"runtime": 5}, "Expected `str`"),
        (CACHE | {"unknown": 1}, "unknown field `unknown`"),
        ({"repository": "nvidia/m"}, "missing required field `format`"),
        (CACHE | {"repository": "nvidia"}, "does not have the shape hf://"),
        (CACHE | {"repository": "nvidia/../m"}, "does not have the shape hf://"),
        (CACHE | {"repository": "nvidia/m@v1"}, "does not have the shape hf://"),
        (CACHE | {"repository": "nvidia/m", "revision": "a#b"}, "does not have the shape hf://"),
        (CACHE | {"file": "a%2e.gguf"}, "does not have the shape hf://"),
    ]:
        with case(artifact=artifact, words=words):
            tmp_path = tmp_path_factory.mktemp("case")
            assert words in refusal(written(tmp_path, artifact))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    assert "No such file" in refusal(path)
    assert "Is a directory" in refusal(tmp_path)
    path.write_text("{")
    assert "truncated" in refusal(path)
    path.write_text("[" * 100_000)
    refusal(path)
    path.write_bytes(b" " * (MAX_DOCUMENT_BYTES + 1))
    assert "is larger than" in refusal(path)
    assert "does not have the shape hf://" in refusal(written(tmp_path, source="no-organisation"))
    path.write_text(json.dumps({"models": [{"source": "a/b"}, {"source": "a/b"}]}))
    assert "'a/b' appears twice" in refusal(path)


def test_the_allow_list_is_taken_to_the_letter() -> None:
    for repository, patterns, is_allowed in [
        ("openai/gpt", ("openai/*", "nvidia/*"), True),
        ("nvidia/x", ("openai/*", "nvidia/*"), True),
        ("openai/gpt", ("openai/gpt",), True),
        ("openai/gpt-2", ("openai/gpt",), False),
        ("openai-mirror/gpt", ("openai/*",), False),
        ("not-openai/gpt", ("openai/*",), False),
        ("OpenAI/gpt", ("openai/*",), False),
        ("openai/gpt", (), False),
        ("openai/gpt", ("*/gpt",), False),
        ("openai/gpt", ("*",), False),
        ("openai/gpt", ("*/*",), False),
        ("openai/gpt", ("open*/*",), False),
        ("openai/gpt", ("openai/g*",), False),
        ("openai", ("openai/*",), False),
        ("openai/", ("openai/*",), False),
        ("openai/a/b", ("openai/*",), False),
        ("/gpt", ("openai/*",), False),
        ("openai/*", ("openai/gpt",), False),
        ("", ("openai/*",), False),
    ]:
        with case(repository=repository, patterns=patterns, is_allowed=is_allowed):
            assert allowed(repository, patterns) is is_allowed


def test_an_allow_list_that_means_nothing_stops_the_start() -> None:
    check_publishers(("openai/*", "nvidia/one"))
    for wrong in ("*", "openai", "openai/g*", "*/x", "openai/*/x", ""):
        with pytest.raises(SettingError, match="ALLM_ARTIFACT_PUBLISHERS"):
            check_publishers(("openai/*", wrong))
