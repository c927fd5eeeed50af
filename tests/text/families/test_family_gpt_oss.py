"""gpt-oss: sinks, windows in every second layer, experts with biases, YaRN; plain and packed in MXFP4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.worker.messages import EngineError
from tests.late import late
from tests.text.families.family_checks import (
    EXACT,
    check_bfloat16,
    check_float32,
    check_memory_pressure,
    check_mixed_batch,
    check_shows,
    prompt,
)
from tests.text.families.packed_experts import VALUES, pack
from tests.text.families.parity import agree
from tests.text.families.published_configs import GPT_OSS, MXFP4, changed
from tests.text.families.random_models import write_model, write_packed, write_variant
from tests.text.families.torch_session import alone, load

torch = late("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpt-oss")


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    """Writes a model in MXFP4 next to `plain`, which has the same values in bfloat16."""
    return write_packed(folder / "packed", write_model(folder / "plain", GPT_OSS), MXFP4)


@pytest.fixture(scope="module")
def plain(packed: Path) -> Path:
    return packed.parent / "plain"


@pytest.fixture(scope="module")
def alike(folder: Path) -> Path:
    """Similar experts: in 16 bits another one may win where two score the same, which must not matter much."""
    return write_model(folder / "alike", GPT_OSS, alike=True)


def test_gpt_oss_in_float32(plain: Path) -> None:
    check_float32(plain)


def test_gpt_oss_in_bfloat16(alike: Path) -> None:
    check_bfloat16(alike)


def test_gpt_oss_in_a_crowd(plain: Path) -> None:
    check_mixed_batch(plain)


def test_gpt_oss_in_a_crowd_in_bfloat16(alike: Path) -> None:
    check_mixed_batch(alike, "bfloat16")


def test_windows_under_memory_pressure(plain: Path) -> None:
    check_memory_pressure(plain)


def test_packed_experts_are_transformers(packed: Path) -> None:
    check_float32(packed, packed=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_experts_are_the_plain_ones(packed: Path, plain: Path, dtype: str) -> None:
    asked = prompt(40)
    one, other = alone(load(packed, dtype), asked), alone(load(plain, dtype), asked)
    assert one.tokens == other.tokens
    agree(one, other, EXACT)


def test_packing_is_exact_for_what_it_can_hold() -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.tensor(VALUES)[torch.randint(0, 16, (2, 64, 8), generator=random)]
    values[:, ::32] = 6.0  # sets the scale of every block to 1
    blocks, scales, meant = pack(values)
    assert (blocks.shape, scales.shape) == ((2, 8, 2, 16), (2, 8, 2))
    assert torch.equal(meant, values)
    assert set(scales.flatten().tolist()) == {127}


@pytest.mark.parametrize(
    "change",
    [
        {"sliding_window": 128},
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
        {"rope_scaling": None},
        {"num_experts_per_tok": 3},
        {"swiglu_limit": 1.0},
    ],
)
def test_settings_show_in_the_answers(plain: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    check_shows(plain, write_variant(tmp_path / "other", plain, changed(GPT_OSS, **change)))


@pytest.mark.parametrize("end", ["sinks", "router.bias", "down_proj_bias"])
def test_sinks_and_biases_show_in_the_answers(plain: Path, tmp_path: Path, end: str) -> None:
    value = -100.0 if end == "sinks" else 0.0
    check_shows(plain, write_variant(tmp_path / "without", plain, GPT_OSS, **{end: value}))


def test_packed_experts_without_their_scales_are_refused(packed: Path, tmp_path: Path) -> None:
    broken = write_variant(
        tmp_path / "broken", packed, GPT_OSS | MXFP4, without=("layers.1.mlp.experts.down_proj_scales",)
    )
    with pytest.raises(EngineError) as caught:
        load(broken)
    assert caught.value.code == "MODEL_INVALID"
    assert "down_proj" in caught.value.message
