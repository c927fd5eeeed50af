"""The models file: it supports every option of a registration, and a wrong entry does not affect the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from allm.models.v1 import model_service_pb2

from services.catalog.registration import models_file
from services.catalog.registration.composition import Composition, LoraChoice
from services.catalog.registration.marked_yaml import Wrong
from services.catalog.registration.models_file import ModelsFile, read_file, read_models
from services.catalog.registration.register import NewModel
from services.models.descriptor import EngineSettings
from services.models.desired import ImageDefaults
from tests.case import case

WHOLE = """
models:
  - id: org/m:q4
    source: hf://org/m#sub/m.safetensors
    revision: 4.0
    format: diffusers
    modality: image
    aliases: [a, b]
    base: hf://org/base
    loras:
      - source: hf://org/l@main#l.safetensors
        scale: -0.5
      - {source: file:///l.safetensors}
    image_defaults: {steps: 20, guidance: 2.5}
    engine: {tensor_parallel: 2, pipeline_parallel: 3, context_tokens: 4, max_sequences: 5, kv_tokens: 6, dtype: auto,
      speculation: ngram}
    runtime: diffusers
    keep_loaded: true
"""


def read(text: str) -> ModelsFile:
    return read_models(text.encode())


def entry(*lines: str) -> str:
    return "".join(f"    {line}\n" for line in lines)


def file(*entries: tuple[str, ...]) -> str:
    """Builds a models file from the lines of each entry, after a minimal id."""
    text = "models:\n"
    for number, lines in enumerate(entries):
        text += f"  - id: m{number}\n" + entry(*lines)
    return text


GOOD = ("source: file:///m.gguf", "format: gguf")


def test_a_file_that_is_cut_is_refused_with_its_line_or_removes_nothing() -> None:
    """A cut after a whole entry is the only one that cannot be noticed."""
    for text in (file(GOOD, GOOD), json.dumps({"models": [{"id": "a", "source": "b", "format": "c"}]}, indent=1)):
        for end in range(len(text)):
            with case(cut=text[:end]):
                try:
                    found = read(text[:end])
                except Wrong as wrong:
                    assert (wrong.line or not text[:end].strip()) and wrong.line <= text.count("\n", 0, end) + 1
                else:
                    assert text[:end] == file(GOOD) or (text[:end].endswith("\n") and not found.complete)


def test_everything_that_a_registration_may_say() -> None:
    (found,) = read(WHOLE).declarations
    assert found.new == NewModel(
        id="org/m:q4",
        source="hf://org/m@4.0#sub/m.safetensors",
        format="diffusers",
        modality="image",
        aliases=("a", "b"),
        composition=Composition(
            "hf://org/base", (LoraChoice("hf://org/l@main#l.safetensors", -0.5), LoraChoice("file:///l.safetensors"))
        ),
        image_defaults=ImageDefaults(steps=20, guidance=2.5),
        runtime="diffusers",
        engine=EngineSettings(
            tensor_parallel=2,
            pipeline_parallel=3,
            context_tokens=4,
            max_sequences=5,
            kv_tokens=6,
            dtype="auto",
            speculation="ngram",
        ),
    )
    assert (found.keep_loaded, found.local) == (True, False)


def test_no_field_of_the_registration_is_left_out() -> None:
    """A new field of RegisterModelRequest must be a key of the file and take part in the comparison."""
    fields = {field.name for field in model_service_pb2.RegisterModelRequest.DESCRIPTOR.fields}
    keys = set(models_file._KEYS)
    assert keys - fields == {"revision", "keep_loaded"}
    assert fields <= keys
    (found,) = read(WHOLE).declarations
    assert set(json.loads(found.text)) == keys - {"id", "revision", "modality"}  # derived from source and format
    assert set(json.loads(found.text)["engine"]) == set(EngineSettings.__slots__)
    (plain,) = read(file(GOOD)).declarations
    assert "engine" not in json.loads(plain.text), "as earlier versions have noted it"


def test_json_with_tabs_says_the_same() -> None:
    models = [{"id": "m0", "source": "file:///m.gguf", "format": "gguf"}]
    (found,) = read(json.dumps({"models": models}, indent="\t")).declarations
    (same,) = read(file(GOOD)).declarations
    assert (found, found.local) == (same, True)


def test_same_content_is_equal_in_any_order_and_style() -> None:
    (plain,) = read(file(GOOD)).declarations
    (other,) = read(
        "# a comment\n" + file(("format: 'gguf'", "aliases:", "loras: []", "source: file:///m.gguf"))
    ).declarations
    assert (plain, plain.text) == (other, other.text)
    (changed,) = read(file((*GOOD, "keep_loaded: false"))).declarations
    assert changed.text != plain.text


def test_invalid_entry_is_reported_by_line_and_key_and_the_others_apply() -> None:
    for lines, line, key, message in [
        (("format: gguf",), 5, ".source", "models[1] must have 'source'"),
        (("source: file:///x",), 5, ".format", "models[1] must have 'format'"),
        ((*GOOD, "alias: x"), 8, ".alias", "unknown key 'alias'; the keys are id, source,"),
        ((*GOOD, "aliases: x"), 8, ".aliases", "models[1].aliases must be a list"),
        (
            (*GOOD, f"aliases: {[*range(33)]}"),
            8,
            ".aliases",
            "models[1].aliases may have at most 32 entries, but has 33",
        ),
        ((*GOOD, "aliases: [x, [y]]"), 8, ".aliases[1]", "models[1].aliases[1] must be a string"),
        ((*GOOD, "keep_loaded: 1"), 8, ".keep_loaded", "models[1].keep_loaded must be true or false"),
        ((*GOOD, "loras:", "  - scale: 1"), 9, ".loras[0].source", "models[1].loras[0] must have 'source'"),
        ((*GOOD, "loras:", "  - source: x", "    scale: y"), 10, ".loras[0].scale", "must be a number"),
        ((*GOOD, "image_defaults: {steps: 1.5}"), 8, ".image_defaults.steps", "must be a whole number"),
        ((*GOOD, "engine: {gpus: 2}"), 8, ".engine.gpus", "unknown key 'gpus'; the keys are tensor_parallel,"),
        ((*GOOD, "engine: {kv_tokens: many}"), 8, ".engine.kv_tokens", "must be a whole number"),
        ((*GOOD, "engine: {dtype: [auto]}"), 8, ".engine.dtype", "must be a string"),
        ((*GOOD, "revision: main"), 8, ".revision", "is for sources of the hub"),
        (("source: hf://o/m@x", "format: gguf", "revision: y"), 8, ".revision", "the source already has a revision"),
        (("source: hf://o/m", "format: gguf", "revision: a b"), 8, ".revision", "a branch, a tag or a commit"),
        ((*GOOD, "format: gguf"), 8, ".format", "the key 'format' appears twice"),
    ]:
        with case(lines=lines, line=line, key=key, message=message):
            found = read(file(GOOD, lines, GOOD))
            assert [declaration.id for declaration in found.declarations] == ["m0", "m2"]
            (problem,) = found.problems
            assert (problem.line, problem.key, problem.model) == (line, f"models[1]{key}", "m1")
            assert message in problem.message
            assert found.named == {"m0", "m1", "m2"}
            assert found.complete == (not message.startswith("models[1] must have"))


def test_an_id_that_is_there_twice_counts_once() -> None:
    found = read(file(GOOD) + file(GOOD).removeprefix("models:\n"))
    assert [declaration.id for declaration in found.declarations] == ["m0"]
    (problem,) = found.problems
    assert (problem.line, problem.message) == (5, "the id 'm0' appears twice, also in line 2")


def test_a_name_that_two_entries_want_is_the_first_ones() -> None:
    found = read(file((*GOOD, "aliases: [x, m3]"), (*GOOD, "aliases: [x]"), (*GOOD, "aliases: [y, x]"), GOOD))
    assert [declaration.id for declaration in found.declarations] == ["m1", "m3"]
    assert [(problem.line, problem.key, problem.model, problem.message) for problem in found.problems] == [
        (5, "models[0].aliases", "m0", "the alias 'm3' is already an id in this file"),
        (13, "models[2].aliases", "m2", "the alias 'x' is already an alias of 'm1' in this file"),
    ]


@pytest.mark.parametrize("lines", ["  - idd: x\n", "  - 5\n", "  - id:\n", "  - id: [x]\n"])
def test_entry_without_an_id_leaves_the_file_unresolved(lines: str) -> None:
    found = read(file(GOOD) + lines)
    assert not found.complete
    assert len(found.problems) == 1


def test_position_of_a_refusal_of_the_catalog() -> None:
    (found,) = read(WHOLE).declarations
    assert [found.problem(param, "no").line for param in ("source", "image_defaults.steps", "base", "id", None)] == [
        4,
        14,
        9,
        3,
        3,
    ]
    assert found.problem("loras", "no").key == "models[0].loras"
    assert found.problem("whatever", "no").key == "models[0]"


def test_a_file_that_declares_nothing_by_mistake() -> None:
    for data, line, message in [
        (b"", 0, "it is empty"),
        (b"models:\n", 1, "`models: []` declares none"),
        (b"{}", 1, "`models: []` declares none"),
        (b"model: []", 1, "unknown key 'model'"),
        (b"models: {}", 1, "models must be a list"),
        (b"models: []\n# \xff", 2, "it is not UTF-8"),
        (b"models: [" + b"x, " * 1000 + b"x]", 1, "models may have at most 1000 entries, but has 1001"),
    ]:
        with case(data=data, line=line, message=message):
            with pytest.raises(Wrong) as caught:
                read_models(data)
            assert caught.value.line == line
            assert message in caught.value.message


def test_a_file_that_declares_nothing_on_purpose() -> None:
    assert read("models: []") == ModelsFile(declarations=(), problems=(), named=frozenset(), complete=True)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    with pytest.raises(Wrong, match="there is no such file"):
        read_file(path)
    with pytest.raises(Wrong, match="there is no such file"):
        read_file(tmp_path)
    path.write_bytes(b"#" * (models_file.MAX_FILE_BYTES + 1))
    with pytest.raises(Wrong, match="more than 1048576 bytes"):
        read_file(path)
    path.write_bytes(b"#" * models_file.MAX_FILE_BYTES)
    assert len(read_file(path)) == models_file.MAX_FILE_BYTES
