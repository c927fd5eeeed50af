"""The hub's search through a real HTTP server: what is asked, and what is read of an answer that says anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.errors import ModelInvalid, ModelNotReady, Overloaded
from services.models.hub.search import FoundRepository, search_hub
from tests.loopback_hub import LISTING, LoopbackHub

QWEN = {"tags": ["gguf", "license:apache-2.0"], "gguf": {"architecture": "qwen3"}, "downloads": 7, "likes": 3}


def test_a_format_is_searched_and_the_most_used_come_first(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("org/qwen-gguf", tmp_path, pipeline_tag="text-generation", **QWEN)
    hub.add("big/qwen-gguf", tmp_path, **(QWEN | {"downloads": 9, "gated": "manual", "tags": ["gguf"]}))
    hub.add("org/qwen", tmp_path, tags=["transformers", "safetensors"], config={"model_type": "qwen3"})
    hub.add("org/other-gguf", tmp_path, tags=["gguf"], downloads=100)
    found = search_hub("Qwen", "gguf", 10)
    assert found == [
        FoundRepository(name="big/qwen-gguf", gated=True, downloads=9, likes=3, architecture="qwen3"),
        FoundRepository(
            name="org/qwen-gguf",
            license="apache-2.0",
            downloads=7,
            likes=3,
            task="text-generation",
            architecture="qwen3",
        ),
    ]
    assert [each.name for each in search_hub("", "gguf", 1)] == ["org/other-gguf"]
    assert [(each.name, each.architecture) for each in search_hub("qwen", "safetensors", 10)] == [("org/qwen", "qwen3")]


def test_speech_and_images_have_their_own_filters(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("o/faster-whisper", tmp_path, tags=["ctranslate2"], pipeline_tag="automatic-speech-recognition")
    hub.add("o/wav2vec2", tmp_path, pipeline_tag="automatic-speech-recognition", config={"model_type": "wav2vec2"})
    hub.add("o/sd", tmp_path, tags=["diffusers", "diffusers:FluxPipeline"], pipeline_tag="text-to-image")
    assert [each.name for each in search_hub("", "whisper", 10)] == ["o/faster-whisper"]
    assert [each.architecture for each in search_hub("wav", "whisper", 10)] == ["wav2vec2"]
    assert [(each.name, each.architecture) for each in search_hub("", "diffusers", 10)] == [("o/sd", "FluxPipeline")]


def test_the_token_goes_to_the_hub_only(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_secret"
    with pytest.raises(ModelInvalid, match="HF_TOKEN") as refused:
        search_hub("x", "gguf", 1)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert search_hub("x", "gguf", 1) == []
    assert hub.token not in refused.value.message


@pytest.mark.parametrize(
    "listed",
    [
        {"id": 5},
        {"id": "no-slash"},
        {"id": "../../etc/passwd"},
        {"id": "a/b\n"},
        "text",
        None,
    ],
)
def test_an_entry_without_a_usable_name_is_left_out(hub: LoopbackHub, listed: Any) -> None:
    hub.search = lambda _: [listed, {"id": "a/b"}]  # type: ignore[method-assign, list-item]
    assert search_hub("", "gguf", 5) == [FoundRepository(name="a/b")]


def test_values_of_other_types_count_as_not_said(hub: LoopbackHub) -> None:
    strange = {"tags": "gguf", "downloads": -1, "likes": True, "gguf": [], "config": 3, "pipeline_tag": "a\nb"}
    hub.search = lambda _: [{"id": "a/b"} | strange]  # type: ignore[method-assign]
    assert search_hub("", "gguf", 5) == [FoundRepository(name="a/b")]
    hub.search = lambda _: json.loads('{"error": "no list"}')  # type: ignore[method-assign]
    with pytest.raises(ModelInvalid, match="not a list"):
        search_hub("", "gguf", 5)


def test_a_hub_that_fails_or_is_busy_is_an_error_of_its_kind(hub: LoopbackHub) -> None:
    hub.status(LISTING, 503, times=2)
    with pytest.raises(ModelNotReady, match="answers 503"):
        search_hub("", "gguf", 5)
    hub.status(LISTING, 429, headers={"retry-after": "7"})
    with pytest.raises(Overloaded) as busy:
        search_hub("", "gguf", 5)
    assert busy.value.retry_after == 7
