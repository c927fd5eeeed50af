"""Diffusers pipelines: every component that model_index.json names, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.errors import ModelInvalid
from services.models.formats.diffusers import inspect_base
from services.models.formats.inspect import inspect
from services.models.formats.original_layout import layout_of
from services.models.formats.safetensors_header import Tensor
from tests.case import case
from tests.models.formats.handmade_models import (
    UNET,
    WatchedTree,
    local,
    paths,
    refusal,
    write_json,
    write_pipeline,
    write_safetensors,
    write_shards,
)
from tests.models.formats.test_original_layout import ATTENTION, PLAIN, SD1, tensors

WHOLE = [
    "model_index.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "tokenizer/merges.txt",
    "tokenizer/vocab.json",
    "unet/config.json",
    f"unet/{UNET}.safetensors",
    "vae/config.json",
    f"vae/{UNET}.safetensors",
]


def change(folder: Path, **entries: Any) -> None:
    """Changes entries of model_index.json."""
    path = folder / "model_index.json"
    write_json(path, json.loads(path.read_text()) | entries)


def test_a_whole_pipeline(tmp_path: Path) -> None:
    found = inspect(local(write_pipeline(tmp_path)), "diffusers")
    assert (found.format, found.modality, found.architecture) == ("diffusers", "image", "StableDiffusionPipeline")
    assert (found.capabilities, found.context_tokens, found.primary) == ({"image"}, 0, "")
    assert paths(found) == WHOLE


def test_unnamed_files_are_not_part_of_it(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    write_json(tmp_path / "safety_checker/config.json", {})
    write_safetensors(tmp_path / "v1-5-pruned.safetensors")
    write_safetensors(tmp_path / "unet/other.safetensors")
    (tmp_path / f"unet/{UNET}.bin").write_bytes(b"pickle")
    (tmp_path / "unet/model.py").write_text("raise SystemExit")
    write_json(tmp_path / "unet/metadata.json", {})
    write_json(tmp_path / "unet/deep/config.json", {})
    assert paths(inspect(local(tmp_path), "diffusers")) == WHOLE


def test_every_file_that_is_missing_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    for path in [path for path in WHOLE if not path.startswith("tokenizer")]:
        with case(path=path):
            tmp_path = tmp_path_factory.mktemp("case")
            write_pipeline(tmp_path)
            (tmp_path / path).unlink()
            assert f"{path} is missing" in refusal(tmp_path, "diffusers")


def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    change(tmp_path, image_encoder=["transformers", "CLIPVisionModelWithProjection"])
    (tmp_path / "vae/config.json").unlink()
    (tmp_path / "tokenizer/merges.txt").unlink()
    message = refusal(tmp_path, "diffusers")
    for name in ("image_encoder/config.json", "image_encoder/model.safetensors", "vae/config.json"):
        assert name in message
    assert "tokenizer/vocab.json + tokenizer/merges.txt" in message


@pytest.mark.parametrize("names", [["tokenizer.json"], ["tokenizer_config.json"], ["spiece.model"]])
def test_other_tokenizers(tmp_path: Path, names: list[str]) -> None:
    write_pipeline(tmp_path)
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "tokenizer" / name).unlink()
    for name in names:
        (tmp_path / "tokenizer" / name).write_text("x")
    found = paths(inspect(local(tmp_path), "diffusers"))
    assert [path for path in found if path.startswith("tokenizer")] == [f"tokenizer/{name}" for name in names]


def test_a_feature_extractor(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    change(tmp_path, feature_extractor=["transformers", "CLIPImageProcessor"])
    assert "feature_extractor/preprocessor_config.json" in refusal(tmp_path, "diffusers")
    write_json(tmp_path / "feature_extractor/preprocessor_config.json", {})
    assert "feature_extractor/preprocessor_config.json" in paths(inspect(local(tmp_path), "diffusers"))


# --- weights


def test_weights_in_shards(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    (tmp_path / f"unet/{UNET}.safetensors").unlink()
    shards = write_shards(tmp_path / "unet", stem=UNET)
    found = paths(inspect(local(tmp_path), "diffusers"))
    assert {f"unet/{shard}" for shard in shards} | {f"unet/{UNET}.safetensors.index.json"} <= {*found}
    (tmp_path / "unet" / shards[1]).unlink()
    assert f"unet/{shards[1]} is missing" in refusal(tmp_path, "diffusers")


def test_shards_of_a_component_are_checked(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    (tmp_path / "text_encoder/model.safetensors").unlink()
    shard = write_shards(tmp_path / "text_encoder")[2]
    write_safetensors(tmp_path / "text_encoder" / shard, "other")
    assert f"text_encoder/{shard} lacks tensors that text_encoder/model.safetensors.index.json" in refusal(
        tmp_path, "diffusers"
    )


@pytest.mark.parametrize("path", [path for path in WHOLE if path.endswith(".safetensors")])
def test_weights_that_are_cut_off(tmp_path: Path, path: str) -> None:
    write_pipeline(tmp_path)
    data = (tmp_path / path).read_bytes()
    (tmp_path / path).write_bytes(data[:-1])
    message = refusal(tmp_path, "diffusers")
    assert message == f"{path} is cut off: it has {len(data) - 1} bytes; by its header it must have {len(data)}"


def test_plain_weights_are_taken_before_variants(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    for variant in ("fp16", "non_ema"):
        write_safetensors(tmp_path / f"unet/{UNET}.{variant}.safetensors")
    assert paths(inspect(local(tmp_path), "diffusers")) == WHOLE
    (tmp_path / f"unet/{UNET}.safetensors").unlink()
    assert "ambiguous" in refusal(tmp_path, "diffusers")
    (tmp_path / f"unet/{UNET}.non_ema.safetensors").unlink()
    assert f"unet/{UNET}.fp16.safetensors" in paths(inspect(local(tmp_path), "diffusers"))


@pytest.mark.parametrize("name", ["diffusion_pytorch_model.bin", "diffusion_pytorch_model.fp16.bin", "unet.ckpt"])
def test_weights_that_are_no_safetensors_are_refused_by_name(tmp_path: Path, name: str) -> None:
    write_pipeline(tmp_path)
    (tmp_path / f"unet/{UNET}.safetensors").rename(tmp_path / "unet" / name)
    assert f"unet/{name}: only safetensors are supported" in refusal(tmp_path, "diffusers")


# --- model_index.json


def test_a_folder_without_model_index(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    (tmp_path / "model_index.json").unlink()
    assert "model_index.json is missing" in refusal(tmp_path, "diffusers")


def test_a_pipeline_must_name_its_class(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in [None, "", 5, ["pipeline", "MyPipeline"], {}, "../x", "a b"]:
        with case(name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            write_pipeline(tmp_path)
            change(tmp_path, _class_name=name)
            assert "_class_name in model_index.json is" in refusal(tmp_path, "diffusers")


def test_entries_that_are_no_components(tmp_path_factory: pytest.TempPathFactory) -> None:
    for value in [[None, None], [None, "X"], True, 0.5, None, "text", {"a": 1}, [9, 18, 27], []]:
        with case(value=value):
            tmp_path = tmp_path_factory.mktemp("case")
            write_pipeline(tmp_path)
            change(tmp_path, extra=value)
            assert paths(inspect(local(tmp_path), "diffusers")) == WHOLE


@pytest.mark.parametrize("value", [["diffusers"], ["diffusers", 5], ["diffusers", ""], ["a", "b", "c"], [["a"], "b"]])
def test_components_that_cannot_be(tmp_path: Path, value: object) -> None:
    write_pipeline(tmp_path)
    change(tmp_path, extra=value)
    assert "model_index.json names 'extra'" in refusal(tmp_path, "diffusers")


def test_a_component_is_a_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ["../vae", "/vae", "a/b", ".", "..", "", "ä", "x" * 65]:
        with case(name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            write_pipeline(tmp_path)
            change(tmp_path, **{name: ["diffusers", "AutoencoderKL"]})
            assert "which is not a component" in refusal(tmp_path, "diffusers")


def test_there_are_only_so_many_components(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    change(tmp_path, **{f"c{at}": ["diffusers", "AutoencoderKL"] for at in range(100)})
    assert "64 are allowed" in refusal(tmp_path, "diffusers")


def test_a_pipeline_without_weights(tmp_path: Path) -> None:
    write_json(tmp_path / "model_index.json", {"_class_name": "X", "scheduler": ["diffusers", "DDIMScheduler"]})
    write_json(tmp_path / "scheduler/scheduler_config.json", {})
    assert "names no component that has weights" in refusal(tmp_path, "diffusers")


def test_documents_that_are_no_objects(tmp_path_factory: pytest.TempPathFactory) -> None:
    for path in ["model_index.json", "unet/config.json"]:
        for content in ["[]", "{", '{"a":' * 100_000]:
            with case(path=path, content=content):
                tmp_path = tmp_path_factory.mktemp("case")
                write_pipeline(tmp_path)
                (tmp_path / path).write_text(content)
                assert refusal(tmp_path, "diffusers").startswith(f"{path} is ")


def test_little_of_a_remote_pipeline_is_read(tmp_path: Path) -> None:
    tree = WatchedTree(write_pipeline(tmp_path))
    inspect(tree, "diffusers")
    assert len(tree.opened) == len({*tree.opened}) == 7


FOUND = tensors(SD1, unet=PLAIN) | {ATTENTION: Tensor("F16", 2, (320, 768))}
SIZES = {"in_channels": 4, "block_out_channels": [320, 640], "cross_attention_dim": 768}


def base(folder: Path, **unet: Any) -> list[str]:
    """Writes a pipeline and returns the paths that the inspection takes."""
    write_pipeline(folder)
    write_json(folder / "unet" / "config.json", SIZES | unet)
    return taken(folder)


def taken(folder: Path) -> list[str]:
    return [file.path for file in inspect_base(local(folder), layout_of(FOUND, "x"), FOUND).files]


def refused(folder: Path) -> str:
    with pytest.raises(ModelInvalid) as caught:
        taken(folder)
    return caught.value.message


def test_configuration_and_tokenizers_are_taken_and_weights_are_not(tmp_path: Path) -> None:
    assert base(tmp_path) == [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "tokenizer/merges.txt",
        "tokenizer/vocab.json",
        "unet/config.json",
        "vae/config.json",
    ]


def test_it_need_not_have_weights_at_all(tmp_path: Path) -> None:
    whole = base(tmp_path)
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
    change(tmp_path, safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"])
    assert taken(tmp_path) == whole, "what a single file never has is not asked for"


def test_another_kind_of_pipeline_is_refused(tmp_path: Path) -> None:
    base(tmp_path)
    change(tmp_path, _class_name="FluxPipeline")
    what = "is a FluxPipeline; the base of a checkpoint of Stable Diffusion 1.x must be a StableDiffusionPipeline"
    assert what in refused(tmp_path)


@pytest.mark.parametrize(
    ("unet", "what"),
    [
        ({"cross_attention_dim": 1024}, "cross_attention_dim in unet/config.json is 1024, here it is 768"),
        ({"in_channels": 9}, "in_channels in unet/config.json is 9, here it is 4"),
        ({"block_out_channels": [64, 128]}, "block_out_channels in unet/config.json is 64, here it is 320"),
    ],
)
def test_one_of_other_sizes_is_refused(tmp_path: Path, unet: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelInvalid, match=what):
        base(tmp_path, **unet)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    base(tmp_path)
    (tmp_path / "vae" / "config.json").unlink()
    (tmp_path / "tokenizer" / "vocab.json").unlink()
    message = refused(tmp_path)
    assert "vae/config.json" in message
    assert "tokenizer/vocab.json" in message
    (tmp_path / "model_index.json").unlink()
    assert "model_index.json is missing" in refused(tmp_path)


def test_a_component_that_the_checkpoint_cannot_have_is_refused(tmp_path: Path) -> None:
    base(tmp_path)
    change(tmp_path, text_encoder_2=["transformers", "CLIPTextModel"])
    assert "has a text_encoder_2, which a checkpoint of Stable Diffusion 1.x has no weights for" in refused(tmp_path)
