"""GLM: 4 as first published, 4-0414 with norms after each part, 4-MoE with a shared expert and corrected scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.text.families.family_checks import check_bfloat16, check_float32, check_mixed_batch, check_shows
from tests.text.families.published_configs import GLM, GLM4, GLM4_MOE, changed
from tests.text.families.random_models import write_model, write_variant

SHAPES = {"glm": GLM, "glm4": GLM4, "glm4-moe": GLM4_MOE}


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("glm") / request.param, SHAPES[request.param])


@pytest.fixture(scope="module")
def moe_alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Similar experts: in 16 bits another one may win where two score the same, which must not matter much."""
    return write_model(tmp_path_factory.mktemp("glm") / "glm4-moe", GLM4_MOE, alike=True)


def test_in_float32(model: Path) -> None:
    check_float32(model)


def test_in_a_crowd(model: Path) -> None:
    check_mixed_batch(model)


def test_in_bfloat16(model: Path, moe_alike: Path) -> None:
    check_bfloat16(moe_alike if model.name == moe_alike.name else model)


def test_experts_in_a_crowd_in_bfloat16(moe_alike: Path) -> None:
    check_mixed_batch(moe_alike, "bfloat16")


@pytest.mark.parametrize("shape", [GLM4, GLM4_MOE], ids=["dense", "moe"])
def test_rope_over_a_part_of_each_head_shows_in_the_answers(tmp_path: Path, shape: dict[str, object]) -> None:
    model = write_model(tmp_path / "model", shape)
    check_shows(model, write_variant(tmp_path / "other", model, changed(shape, partial_rotary_factor=1.0)))


@pytest.mark.parametrize("end", ["post_self_attn_layernorm.weight", "post_mlp_layernorm.weight"])
def test_norms_behind_the_parts_show_in_the_answers(tmp_path: Path, end: str) -> None:
    model = write_model(tmp_path / "model", GLM4)
    check_shows(model, write_variant(tmp_path / "without", model, GLM4, **{end: 1.0}))


@pytest.mark.parametrize("end", ["e_score_correction_bias", "shared_experts.down_proj.weight", "q_norm.weight"])
def test_scores_shared_experts_and_norms_show_in_the_answers(tmp_path: Path, end: str) -> None:
    model = write_model(tmp_path / "model", GLM4_MOE)
    plain = 1.0 if "norm" in end else 0.0
    check_shows(model, write_variant(tmp_path / "without", model, GLM4_MOE, **{end: plain}))


@pytest.mark.parametrize("change", [{"routed_scaling_factor": 1.0}, {"num_experts_per_tok": 2}])
def test_how_experts_are_chosen_shows_in_the_answers(tmp_path: Path, change: dict[str, object]) -> None:
    model = write_model(tmp_path / "model", GLM4_MOE)
    check_shows(model, write_variant(tmp_path / "other", model, changed(GLM4_MOE, **change)))
