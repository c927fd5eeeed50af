"""Safetensors weights: one file or one index with its shards, never a guess."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from services.errors import ModelInvalid
from services.models.formats.safetensors_shards import MAX_INDEX, Weights, check_weights, find_weights
from tests.case import case
from tests.models.formats.handmade_models import local, safetensors, write_json, write_safetensors, write_shards

INDEX = "model.safetensors.index.json"


def find(folder: Path, prefix: str = "", *, stem: str = "", variants: bool = False) -> Weights | None:
    """Finds the weights and checks them."""
    tree = local(folder)
    found = find_weights(tree, prefix, stem=stem, variants=variants)
    check_weights(tree, [found] if found else [])
    return found


def message(folder: Path, *, stem: str = "", variants: bool = False) -> str:
    with pytest.raises(ModelInvalid) as caught:
        find(folder, stem=stem, variants=variants)
    return caught.value.message


def write_index(folder: Path, weight_map: object) -> None:
    write_json(folder / INDEX, {"metadata": {}, "weight_map": weight_map})


def test_single_file_is_the_model_with_any_name(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    write_safetensors(tmp_path / "sub/model.safetensors")
    write_safetensors(tmp_path / "Qwen2.5-weights.v1.safetensors")
    assert find(tmp_path) == Weights(("Qwen2.5-weights.v1.safetensors",))
    assert find(tmp_path, "sub/") == Weights(("sub/model.safetensors",))


def test_shards_with_their_index_are_one_model(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 12)
    found = find(tmp_path)
    assert found is not None
    assert found.shards == tuple(shards)
    assert found.files == (*shards, INDEX)


def test_files_that_an_index_does_not_name_are_not_part_of_the_model(tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    write_safetensors(tmp_path / "consolidated.safetensors")
    found = find(tmp_path)
    assert found is not None
    assert found.shards == tuple(shards)


def test_an_index_of_one_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", "a", "b")
    write_index(tmp_path, {"a": "model.safetensors", "b": "model.safetensors"})
    assert find(tmp_path) == Weights(
        ("model.safetensors",), INDEX, {"a": "model.safetensors", "b": "model.safetensors"}
    )


def test_several_files_without_an_index_are_ambiguous(tmp_path: Path) -> None:
    for name in ("b", "a", "model"):
        write_safetensors(tmp_path / f"{name}.safetensors")
    assert "ambiguous: a.safetensors, b.safetensors, model.safetensors" in message(tmp_path)


def test_shards_without_their_index(tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    (tmp_path / INDEX).unlink()
    assert f"ambiguous: {', '.join(shards)}" in message(tmp_path)
    for shard in shards[1:]:
        (tmp_path / shard).unlink()
    assert f"{shards[0]} is one shard of several, but {INDEX} is missing" in message(tmp_path)


def test_whole_file_next_to_shards_is_ambiguous(tmp_path: Path) -> None:
    """transformers would take the single file, vllm the index."""
    write_shards(tmp_path)
    write_safetensors(tmp_path / "model.safetensors")
    assert f"ambiguous: model.safetensors, {INDEX}" in message(tmp_path)


def test_missing_shards_are_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 12)
    (tmp_path / shards[4]).unlink()
    assert f"{shards[4]} is missing" in message(tmp_path)
    for shard in shards:
        (tmp_path / shard).unlink(missing_ok=True)
    assert f"{shards[0]}, {shards[1]}, " in message(tmp_path)
    assert f"{shards[9]} and 2 more are missing" in message(tmp_path)


def test_every_shard_is_checked(tmp_path: Path) -> None:
    for shard in write_shards(tmp_path, 12):
        whole = (tmp_path / shard).read_bytes()
        (tmp_path / shard).write_bytes(whole[:-1])
        expected = f"{shard} is cut off: it has {len(whole) - 1} bytes; by its header it must have {len(whole)}"
        assert message(tmp_path) == expected
        (tmp_path / shard).write_bytes(whole)
    assert find(tmp_path)


def test_a_tensor_that_is_not_in_its_shard(tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    write_safetensors(tmp_path / shards[1], f"{shards[1]}.a")
    assert f"{shards[1]} lacks tensors that {INDEX} places in it: {shards[1]}.b" in message(tmp_path)


def test_a_tensor_that_the_index_places_elsewhere(tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    write_safetensors(tmp_path / shards[2], f"{shards[2]}.a", f"{shards[2]}.b", f"{shards[0]}.a")
    assert f"{shards[2]} holds {shards[0]}.a, which {INDEX} places in {shards[0]}" in message(tmp_path)


def test_a_tensor_that_the_index_does_not_name(tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    write_safetensors(tmp_path / shards[2], f"{shards[2]}.a", f"{shards[2]}.b", "lm_head")
    assert f"{shards[2]} holds tensors that {INDEX} does not name: lm_head" in message(tmp_path)


def test_index_names_only_files_of_its_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in [
        "../model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "model.bin",
        ".safetensors.index.json",
        "metadata.json",
        "a\0.safetensors",
        "",
        None,
        5,
        ["model.safetensors"],
        {"model.safetensors": 1},
    ]:
        with case(name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            write_safetensors(tmp_path / "model.safetensors", "a")
            write_safetensors(tmp_path / "sub/model.safetensors", "a")
            write_safetensors(tmp_path.parent / "model.safetensors", "a")
            write_index(tmp_path, {"a": name, "b": "model.safetensors"})
            assert f"{INDEX} names " in message(tmp_path)
            assert "which is not a safetensors file in the same folder" in message(tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": "x"}'])
def test_an_index_must_say_where_tensors_are(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX).write_text(content)
    assert f"{INDEX} has no weight_map" in message(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "is not a JSON object"),
        ("{", "not valid JSON"),
        ('{"weight_map":' * 100_000, "nested too deeply"),
        ('{"weight_map": {"a": "model.safetensors", "a": "b.safetensors"}}', "the key 'a' appears twice"),
        ('{"metadata": {"total_size": NaN}, "weight_map": {"a": "model.safetensors"}}', "NaN is not allowed"),
    ],
)
def test_an_index_that_can_be_read_in_two_ways_or_in_none(tmp_path: Path, content: str, words: str) -> None:
    write_safetensors(tmp_path / "model.safetensors", "a")
    (tmp_path / INDEX).write_text(content)
    assert words in message(tmp_path)


def test_an_index_has_a_largest_size(tmp_path: Path) -> None:
    write_shards(tmp_path)
    with (tmp_path / INDEX).open("r+b") as file:
        file.truncate(MAX_INDEX + 1)
    assert f"{INDEX} has {MAX_INDEX + 1} bytes" in message(tmp_path)


@pytest.mark.parametrize("metadata", [{"total_size": 1}, {"total_size": "x"}, {}, None, 7])
def test_a_total_size_that_is_wrong_is_no_reason(tmp_path: Path, metadata: object) -> None:
    """Published totals are wrong: tied weights are counted twice, or not at all."""
    write_shards(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    write_json(tmp_path / INDEX, index | {"metadata": metadata})
    assert find(tmp_path)


# --- variants


def test_variants_give_way_to_the_plain_files(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors")
    write_safetensors(tmp_path / "model.fp16.safetensors")
    write_safetensors(tmp_path / "model.fp32-00001-of-00002.safetensors")
    write_safetensors(tmp_path / "model.fp32-00002-of-00002.safetensors")
    write_json(tmp_path / "model.safetensors.index.fp32.json", {"weight_map": {}})
    assert find(tmp_path, variants=True) == Weights(("model.safetensors",))
    assert "ambiguous" in message(tmp_path), "where variants are not known, several files are several"


def test_a_variant_is_taken_when_it_is_the_only_one(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.fp16.safetensors")
    assert find(tmp_path, variants=True) == Weights(("model.fp16.safetensors",))
    write_safetensors(tmp_path / "model.bf16.safetensors")
    assert "ambiguous: model.bf16.safetensors, model.fp16.safetensors" in message(tmp_path, variants=True)


@pytest.mark.parametrize("shard", ["model.fp16-0000{}-of-00002.safetensors", "model-0000{}-of-00002.fp16.safetensors"])
def test_a_variant_in_shards(tmp_path: Path, shard: str) -> None:
    names = [shard.format(1), shard.format(2)]
    for name in names:
        write_safetensors(tmp_path / name, name)
    write_json(tmp_path / "model.safetensors.index.fp16.json", {"weight_map": {name: name for name in names}})
    found = find(tmp_path, variants=True)
    assert found is not None
    assert found.files == (*names, "model.safetensors.index.fp16.json")


def test_only_files_of_the_stem_count(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors")
    write_safetensors(tmp_path / "model_v2.safetensors")
    assert find(tmp_path, stem="model", variants=True) == Weights(("model.safetensors",))
    assert find(tmp_path, stem="diffusion_pytorch_model", variants=True) is None
    assert "ambiguous" in message(tmp_path, variants=True)


def test_the_first_of_many_that_are_wrong_ends_it(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 40)
    for shard in shards:
        (tmp_path / shard).write_bytes(b"no")
    assert "is cut off" in message(tmp_path)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": ("F32", [1])}))
    assert find(tmp_path) == Weights(("model.safetensors",))
