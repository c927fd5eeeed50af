"""The models of a repository on the hub, by its list of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.catalog.registration.hub_search import look_into, model_sizes
from services.errors import ModelInvalid
from services.models.descriptor import Format
from services.models.hub.search import FoundRepository
from services.models.hub.source import LocalTree
from tests.case import case
from tests.catalog.model_files import gguf, safetensors
from tests.loopback_hub import LoopbackHub


def files(folder: Path, **sizes: int) -> LocalTree:
    for path, size in sizes.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(bytes(size))
    return LocalTree(folder, [folder])


def test_sizes_are_those_of_the_weights(tmp_path: Path) -> None:
    split = {"m-Q8_0-00001-of-00002.gguf": 5, "m-Q8_0-00002-of-00002.gguf": 6, "half-00001-of-00002.gguf": 9}
    pipeline = {"model_index.json": 1, "unet/config.json": 2, "unet/diffusion_pytorch_model.safetensors": 70}
    copies = {"unet/diffusion_pytorch_model.fp16.safetensors": 35, "text_encoder/model.safetensors": 20, "v1.ckpt": 99}
    formats: list[tuple[Format, dict[str, int], dict[str, int]]] = [
        ("gguf", split | {"m-Q4_0.gguf": 3, "mmproj-m.gguf": 1}, {"m-Q8_0-00001-of-00002.gguf": 11, "m-Q4_0.gguf": 3}),
        ("safetensors", {"model.safetensors": 8, "config.json": 2, "m.gguf": 1}, {"": 8}),
        ("whisper", {"model.bin": 4, "vocabulary.json": 1}, {"": 4}),
        ("whisper", {"tiny.pt": 4, "base.pt": 5}, {"tiny.pt": 4, "base.pt": 5}),
        ("diffusers", pipeline | copies, {"": 90}),
    ]
    for number, (format, there, expected) in enumerate(formats):
        with case(format=format, number=number):
            assert model_sizes(files(tmp_path / str(number), **there), format) == expected
    with pytest.raises(ModelInvalid, match="no complete model in diffusers"):
        model_sizes(files(tmp_path / "0"), "diffusers")


def test_a_repository_offers_its_quantizations(hub: LoopbackHub, tmp_path: Path) -> None:
    for name, padding in (("Q8_0", 800), ("Q4_K_M", 400), ("Q2_K", 200)):
        gguf(tmp_path / f"m-{name}.gguf", padding=padding)
    hub.add("org/m-GGUF", tmp_path)
    found = look_into(FoundRepository(name="org/m-GGUF", architecture="llama"), "gguf")
    assert [(each.label, each.usual) for each in found.choices] == [("Q2_K", False), ("Q4_K_M", True), ("Q8_0", False)]
    chosen = found.choices[1]
    assert (chosen.source, chosen.id) == ("hf://org/m-GGUF#m-Q4_K_M.gguf", "m-q4_k_m")
    assert chosen.facts.size == (tmp_path / "m-Q4_K_M.gguf").stat().st_size
    assert (chosen.facts.architecture, chosen.facts.capabilities) == ("llama", {"chat"})
    assert [request.path for request in hub.requests] == ["/api/models/org/m-GGUF"], "only its list of files"


def test_capabilities_follow_the_task(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("org/m", safetensors(tmp_path))
    for task, expected in (("text-ranking", "rerank"), ("feature-extraction", "embeddings"), ("", "chat")):
        with case(task=task):
            found = look_into(FoundRepository(name="org/m", architecture="llama", task=task), "safetensors")
            assert found.choices[0].facts.capabilities == {expected}
            assert (found.choices[0].source, found.choices[0].label) == ("hf://org/m", "")


def test_a_repository_that_cannot_be_read_says_why(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("org/empty", files(tmp_path / "e", **{"README.md": 5}) and tmp_path / "e")
    assert look_into(FoundRepository(name="org/empty"), "gguf").reason == "it has no complete model in gguf"
    hub.add("org/wav", safetensors(tmp_path / "w"))
    wav = FoundRepository(name="org/wav", architecture="wav2vec2")
    assert look_into(wav, "whisper").reason == "it is a model of wav2vec2, not Whisper"
    assert "does not exist" in look_into(FoundRepository(name="org/gone"), "gguf").reason
