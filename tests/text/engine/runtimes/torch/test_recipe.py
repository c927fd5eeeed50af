"""The settings files of sentence-transformers: all published forms are read, others are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.text.engine.runtimes.torch.recipe import Recipe, read_recipe
from services.worker.messages import EngineError
from tests.case import case
from tests.minilm import LIMIT, minilm
from tests.text.engine.tiny_encoders import write_steps


def refusal(folder: Path, *, decoder: bool = False) -> EngineError:
    with pytest.raises(EngineError) as caught:
        read_recipe(folder, decoder=decoder)
    return caught.value


def test_the_real_one() -> None:
    assert read_recipe(minilm(), decoder=False) == Recipe(pooling="mean", normalised=True, max_tokens=LIMIT)


def test_an_encoder_that_says_nothing_takes_the_mean_and_a_decoder_is_refused(tmp_path: Path) -> None:
    assert read_recipe(tmp_path, decoder=False) == Recipe(pooling="mean", normalised=True)
    error = refusal(tmp_path, decoder=True)
    assert error.code == "UNSUPPORTED"
    assert "modules.json is missing" in error.message


def test_poolings_by_all_their_names(tmp_path_factory: pytest.TempPathFactory) -> None:
    for config, pooling in [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "include_prompt": True}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ]:
        with case(config=config, pooling=pooling):
            tmp_path = tmp_path_factory.mktemp("case")
            write_steps(tmp_path, pooling=config)
            recipe = read_recipe(tmp_path, decoder=True)
            assert recipe == Recipe(pooling=pooling, normalised=False)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls and mean"),
        ({"pooling_mode_splade_tokens": True}, "splade"),
        ({"pooling_mode": 7}, "nothing"),
        ({}, "nothing"),
    ],
)
def test_other_poolings_are_refused_by_name(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    write_steps(tmp_path, pooling=config)
    error = refusal(tmp_path)
    assert error.code == "UNSUPPORTED"
    assert f"pools by {words}" in error.message


def test_steps_and_their_order(tmp_path: Path) -> None:
    identity, tanh = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
    write_steps(
        tmp_path, ("Dense", {"activation_function": identity}), ("Dense", {"activation_function": tanh}), limit=99
    )
    recipe = read_recipe(tmp_path, decoder=False)
    assert [layer.activation for layer in recipe.layers] == ["identity", "tanh"]
    assert [layer.weights.parent.name for layer in recipe.layers] == ["2_Dense", "3_Dense"]
    assert (recipe.normalised, recipe.max_tokens, recipe.lower) == (False, 99, False)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": null, "do_lower_case": true}')
    recipe = read_recipe(tmp_path, decoder=False)
    assert (recipe.max_tokens, recipe.lower) == (0, True)


def test_steps_that_are_not_known_are_refused_by_name(tmp_path: Path) -> None:
    write_steps(tmp_path, ("LSTM", {}))
    assert "'LSTM'" in refusal(tmp_path).message
    write_steps(tmp_path, ("Dense", {"activation_function": "torch.nn.modules.activation.GELU"}))
    assert "GELU" in refusal(tmp_path).message


@pytest.mark.parametrize(
    "modules",
    ["{", "{}", "[5]", '[{"path": "../x", "type": "a.Pooling"}]', '[{"path": "/etc", "type": "a.Pooling"}]'],
)
def test_a_list_of_steps_that_cannot_be(tmp_path: Path, modules: str) -> None:
    (tmp_path / "modules.json").write_text(modules)
    assert refusal(tmp_path).code == "MODEL_INVALID"


def test_files_that_are_missing_or_too_large_are_named(tmp_path: Path) -> None:
    write_steps(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").unlink()
    assert "1_Pooling/config.json" in refusal(tmp_path).message
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "x.Normalize", "path": "a"}]))
    assert "no step that pools" in refusal(tmp_path).message
    (tmp_path / "modules.json").write_text(" " * 2**20 + "[]")
    assert "larger than" in refusal(tmp_path).message
