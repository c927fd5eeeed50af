"""References to the hub in Ollama's notation, and the file that is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.catalog.registration.hub_choice import (
    HubReference,
    choose_file,
    find_reference,
    id_of,
    parse_reference,
    quantization_of,
    with_file,
)
from services.errors import InvalidRequest, ModelInvalid
from services.models.hub.source import LocalTree
from tests.case import case
from tests.catalog.model_files import gguf, safetensors


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf.co/org/m", HubReference("hf://org/m", "")),
        ("hf.co/org/m.v2-GGUF:Q4_K_M", HubReference("hf://org/m.v2-GGUF", "Q4_K_M")),
        ("hf.co/org/m@main:sub/m.gguf", HubReference("hf://org/m@main", "sub/m.gguf")),
    ],
)
def test_references(name: str, expected: HubReference) -> None:
    assert parse_reference(name) == expected


@pytest.mark.parametrize(
    "name", ["", "llama3.2", "org/m", "hf.co/org", "hf.co/org/m/n", "hf.co/org/m:", "hf.co//m:Q8_0"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"hf\.co/ORG/NAME:QUANTIZATION") as caught:
        parse_reference(name)
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("text", "source", "tag"),
    [
        ("org/m", "hf://org/m", ""),
        ("org/m-GGUF:Q4_K_M", "hf://org/m-GGUF", "Q4_K_M"),
        ("org/m@v2:sub/m.gguf", "hf://org/m@v2", "sub/m.gguf"),
        ("hf.co/org/m:Q8_0", "hf://org/m", "Q8_0"),
        ("hf://org/m@main#sub/a%20b.gguf", "hf://org/m@main", "sub/a b.gguf"),
        ("https://huggingface.co/org/m", "hf://org/m", ""),
        ("https://huggingface.co/org/m/", "hf://org/m", ""),
        ("https://huggingface.co/org/m/tree/main", "hf://org/m@main", ""),
        ("https://huggingface.co/org/m/blob/v2/sub/m%201.gguf?download=true", "hf://org/m@v2", "sub/m 1.gguf"),
        ("https://hf.co/org/m/resolve/abc/m.gguf", "hf://org/m@abc", "m.gguf"),
        ("file:///models/m.gguf", "file:///models/m.gguf", ""),
    ],
)
def test_sources_as_people_write_them(text: str, source: str, tag: str) -> None:
    assert find_reference(text) == HubReference(source, tag)


@pytest.mark.parametrize(
    "text", ["", "m", "org/", "https://example.org/org/m", "org/m n", "https://hf.co/org", "a/b/c"]
)
def test_other_texts_are_refused_by_the_name_of_the_parameter(text: str) -> None:
    with pytest.raises(InvalidRequest, match="ORG/NAME") as caught:
        find_reference(text)
    assert caught.value.param == "source"


def test_sources_of_files_and_proposed_ids() -> None:
    for source, file, whole, model_id in (
        ("hf://Qwen/Qwen3-0.6B-GGUF", "Qwen3-Q8_0.gguf", "hf://Qwen/Qwen3-0.6B-GGUF#Qwen3-Q8_0.gguf", "qwen3-0.6b"),
        ("hf://org/m@v2", "", "hf://org/m@v2", "m"),
        ("hf://org/m.gguf", "m.gguf", "hf://org/m.gguf#m.gguf", "m"),
        ("file:///models/My%20Model.gguf", "My Model.gguf", "file:///models/My%20Model.gguf", "my-model"),
        ("file:///models/m/", "m-Q8_0.gguf", "file:///models/m/m-Q8_0.gguf", "m-q8_0"),
        ("file:///models/_x", "", "file:///models/_x", "x"),
    ):
        with case(source=source):
            assert with_file(source, file) == whole
            assert id_of(whole) == model_id


def test_quantization_in_file_names() -> None:
    for name, expected in (
        ("m-Q8_0.gguf", "Q8_0"),
        ("m.q4_k_m.gguf", "Q4_K_M"),
        ("UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf", "Q4_K_XL"),
        ("IQ2_XXS/m.gguf", "IQ2_XXS"),
        ("m.BF16.gguf", "BF16"),
        ("m-F16-Q4_0.gguf", "Q4_0"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("qwen-7B.gguf", ""),
        ("Q8ly.gguf", ""),
        ("model.safetensors", ""),
    ):
        with case(name=name):
            assert quantization_of(name) == expected


def chosen(folder: Path, tag: str = "") -> tuple[str, str]:
    return choose_file(LocalTree(folder, [folder]), HubReference("hf://org/m", tag))


def test_a_quantization_a_file_or_the_usual_one(tmp_path: Path) -> None:
    for name in ("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf"):
        gguf(tmp_path / name)
    gguf(tmp_path / "mmproj-Q4_0.gguf")
    assert chosen(tmp_path) == ("gguf", "m-Q4_K_M.gguf")
    assert chosen(tmp_path, "q8_0") == ("gguf", "m-Q8_0.gguf")
    assert chosen(tmp_path, "F16") == ("gguf", "m-F16-00001-of-00002.gguf")
    assert chosen(tmp_path, "m-Q8_0.gguf") == ("gguf", "m-Q8_0.gguf")
    with pytest.raises(ModelInvalid, match="hf://org/m has no 'Q4_0'; it has F16, Q4_K_M, Q8_0"):
        chosen(tmp_path, "Q4_0")


def test_without_a_usual_quantization_the_first_one(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        gguf(tmp_path / name)
    assert chosen(tmp_path) == ("gguf", "a.gguf")


def test_a_repository_without_gguf_files(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="no model of a known format"):
        chosen(tmp_path)
    safetensors(tmp_path)
    assert chosen(tmp_path) == ("safetensors", "")
    with pytest.raises(ModelInvalid, match="it has no GGUF files with a quantization"):
        chosen(tmp_path, "Q4_0")
