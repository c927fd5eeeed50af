"""Model folders loaded by the torch runtime: in shards, in other precisions, with missing parts.

Registration checks all this first. A file that is lost or damaged later must still fail with a message that names
the cause.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.worker.messages import EngineError
from tests.late import late
from tests.text.families.family_checks import EXACT, prompt
from tests.text.families.parity import agree
from tests.text.families.published_configs import QWEN25, changed
from tests.text.families.random_models import INDEX, WHOLE, shard, write_json, write_model, write_variant
from tests.text.families.torch_session import alone, load

safetensors_torch = late("safetensors.torch")
torch = late("torch")

ASKED = prompt(20)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("folders") / "whole", QWEN25)


def fault(folder: Path) -> str:
    """Returns the message of a failed load, whose code must be MODEL_INVALID."""
    with pytest.raises(EngineError) as caught:
        load(folder)
    assert caught.value.code == "MODEL_INVALID", caught.value.message
    return caught.value.message


def test_shards_are_one_model(whole: Path, tmp_path: Path) -> None:
    shard(tmp_path / "sharded", whole)
    one, other = alone(load(tmp_path / "sharded"), ASKED), alone(load(whole), ASKED)
    assert one == other


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_precision_of_the_files_need_not_be_that_of_the_computing(
    whole: Path, tmp_path: Path, precision: str
) -> None:
    other = write_variant(tmp_path / "other", whole, changed(QWEN25, torch_dtype=precision))
    safetensors_torch.save_file(
        {
            name: tensor.to(getattr(torch, precision))
            for name, tensor in safetensors_torch.load_file(whole / WHOLE).items()
        },
        other / WHOLE,
    )
    found, expected = alone(load(other), ASKED), alone(load(whole), ASKED)
    assert found.tokens == expected.tokens
    # Weights near zero lose precision in float16.
    agree(found, expected, EXACT if precision == "float32" else 100 * EXACT)


def test_a_lost_shard_is_named(whole: Path, tmp_path: Path) -> None:
    _, second = shard(tmp_path / "sharded", whole)
    (tmp_path / "sharded" / second).unlink()
    assert second in fault(tmp_path / "sharded")


def test_a_cut_file_is_named(whole: Path, tmp_path: Path) -> None:
    folder = write_variant(tmp_path / "cut", whole, QWEN25)
    with (folder / WHOLE).open("r+b") as file:
        file.truncate(10_000)
    assert "cut" in fault(folder)


def test_a_tensor_that_lacks_is_named(whole: Path, tmp_path: Path) -> None:
    folder = write_variant(tmp_path / "lacking", whole, QWEN25, without=("layers.1.self_attn.q_proj.bias",))
    assert "layers.1.self_attn.q_proj.bias" in fault(folder)


def test_a_tensor_of_another_shape_is_named(whole: Path, tmp_path: Path) -> None:
    folder = write_variant(tmp_path / "misshapen", whole, changed(QWEN25, intermediate_size=304))
    assert "mlp.down_proj.weight" in fault(folder) or "mlp.gate_proj.weight" in fault(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", WHOLE])
def test_a_missing_file_is_named(whole: Path, tmp_path: Path, name: str) -> None:
    folder = write_variant(tmp_path / "bare", whole, QWEN25)
    (folder / name).unlink()
    assert name in fault(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_spoilt_file_is_named(whole: Path, tmp_path: Path, name: str) -> None:
    folder = write_variant(tmp_path / "spoilt", whole, QWEN25)
    (folder / name).write_text("{")
    assert name in fault(folder)


def test_an_index_that_names_another_file_is_refused(whole: Path, tmp_path: Path) -> None:
    first, _ = shard(tmp_path / "sharded", whole)
    index = json.loads((tmp_path / "sharded" / INDEX).read_text())
    moved = {name: "other.safetensors" if file == first else file for name, file in index["weight_map"].items()}
    write_json(tmp_path / "sharded" / INDEX, index | {"weight_map": moved})
    assert "other.safetensors" in fault(tmp_path / "sharded")
