"""Nemotron-H and Nemotron 3 Nano: Mamba-2 layers with a state per request, mixed with attention and experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.worker.messages import EngineError
from tests.text.families.family_checks import (
    EXACT,
    check_bfloat16,
    check_float32,
    check_memory_pressure,
    check_mixed_batch,
    check_shows,
    prompt,
)
from tests.text.families.parity import agree
from tests.text.families.published_configs import NEMOTRON_3, NEMOTRON_H, changed
from tests.text.families.random_models import write_model, write_variant
from tests.text.families.torch_session import LIMITS, TorchSession, alone, ends_of, load

if TYPE_CHECKING:
    from services.text.engine.runtimes.torch.engine import SafetensorsEngine


SHAPES = {"nemotron-h": NEMOTRON_H, "nemotron-3": NEMOTRON_3}


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("nemotron") / request.param, SHAPES[request.param])


@pytest.fixture(scope="module", params=SHAPES)
def alike(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Similar experts: in 16 bits another one may win where two score the same, which must not matter much.

    Squared activations enlarge even a small difference, so the scaling factor of the experts' results is 1.
    """
    config = SHAPES[request.param]
    if "routed_scaling_factor" in config:
        config = changed(config, routed_scaling_factor=1.0)
    return write_model(tmp_path_factory.mktemp("alike") / request.param, config, alike=True)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("nemotron") / "hybrid", NEMOTRON_H)


@pytest.fixture(scope="module")
def engine(hybrid: Path) -> SafetensorsEngine:
    return load(hybrid)


def test_in_float32(model: Path) -> None:
    check_float32(model)


def test_in_bfloat16(alike: Path) -> None:
    check_bfloat16(alike)


def test_in_a_crowd(model: Path) -> None:
    check_mixed_batch(model)


def test_in_a_crowd_in_bfloat16(alike: Path) -> None:
    check_mixed_batch(alike, "bfloat16")


def test_states_under_memory_pressure(hybrid: Path) -> None:
    check_memory_pressure(hybrid)


@pytest.mark.parametrize("tokens", [1, 2, 3, 16, 64])
def test_a_state_is_carried_over_from_chunk_to_chunk(engine: SafetensorsEngine, tokens: int) -> None:
    asked = prompt(130)
    session = TorchSession(engine, replace(LIMITS, batch_tokens=tokens, chunk_tokens=tokens))
    session.ask(1, asked)
    session.turn(2)
    assert not session.answers[1].pieces, "it is still being read"
    session.finish(1)
    whole = TorchSession(engine, replace(LIMITS, batch_tokens=512, chunk_tokens=512))
    whole.ask(1, asked)
    whole.finish(1)
    assert session.generated(1).tokens == whole.generated(1).tokens
    agree(session.generated(1), whole.generated(1), EXACT, ends_of(engine))


@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("turns", [1, 9])
def test_request_after_a_cancelled_one_finds_no_state(engine: SafetensorsEngine, turns: int, length: int) -> None:
    """The next request gets the same sequence id, the lowest free one, after a cancellation in prefill or decoding."""
    session = TorchSession(engine, replace(LIMITS, cached_cells=0))
    session.ask(1, prompt(150, seed=6))
    session.turn(turns)
    assert bool(session.answers[1].pieces) == (turns > 1)
    session.cancel(1)
    session.ask(2, prompt(length, seed=7))
    session.finish(2)
    assert session.generated(2).tokens == alone(engine, prompt(length, seed=7)).tokens
    assert session.counters is not None
    assert (session.counters.running, session.counters.active_cells) == (0, 0)


@pytest.mark.parametrize(
    ("end", "value"),
    [("conv1d.weight", 0.25), ("conv1d.bias", 0), ("A_log", 2), ("D", 0), ("dt_bias", -2), ("mixer.norm.weight", 1)],
)
def test_every_parameter_of_a_mixer_shows_in_the_answers(hybrid: Path, tmp_path: Path, end: str, value: float) -> None:
    check_shows(hybrid, write_variant(tmp_path / "other", hybrid, NEMOTRON_H, **{end: value}))


@pytest.mark.parametrize("end", ["e_score_correction_bias", "shared_experts.down_proj.weight"])
def test_scores_and_shared_experts_show_in_the_answers(tmp_path: Path, end: str) -> None:
    model = write_model(tmp_path / "model", NEMOTRON_3)
    check_shows(model, write_variant(tmp_path / "without", model, NEMOTRON_3, **{end: 0.0}))


@pytest.mark.parametrize("change", [{"n_groups": 8, "ssm_state_size": 8}, {"mlp_hidden_act": "relu"}])
def test_settings_show_in_the_answers(hybrid: Path, tmp_path: Path, change: dict[str, object]) -> None:
    check_shows(hybrid, write_variant(tmp_path / "other", hybrid, changed(NEMOTRON_H, **change)))


def test_published_code_is_not_run(hybrid: Path, tmp_path: Path) -> None:
    other = write_variant(tmp_path / "other", hybrid, NEMOTRON_H)
    for name in ("configuration_nemotron_h.py", "modeling_nemotron_h.py"):
        (other / name).write_text("raise SystemExit('it was run')")
    assert alone(load(other), prompt(9)).tokens == alone(load(hybrid), prompt(9)).tokens


def test_layers_that_all_recur_need_no_keys(tmp_path: Path) -> None:
    layers = {"hybrid_override_pattern": "M-M-", "num_hidden_layers": 4}
    engine = load(write_model(tmp_path / "recurrent", NEMOTRON_H | layers))
    assert engine.executor.cell_bytes == 0
    asked, session = prompt(40), TorchSession(engine)
    session.ask(1, asked)
    session.ask(2, prompt(70))
    session.finish(1, 2)
    assert session.generated(1).tokens == alone(engine, asked).tokens


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        ({"tensor_parallel": 2}, "UNSUPPORTED", "'nemotron_h' cannot be divided among GPUs"),
        ({"max_sequences": 10**12}, "OUT_OF_MEMORY", "the recurrent state of 1000000000000 requests"),
    ],
)
def test_unavailable_items_are_refused_by_name(hybrid: Path, change: dict[str, int], code: str, named: str) -> None:
    with pytest.raises(EngineError) as caught:
        load(hybrid, **change)
    assert caught.value.code == code
    assert named in caught.value.message


@pytest.mark.parametrize(
    ("change", "named"), [({"n_groups": 3}, "n_groups"), ({"time_step_limit": [0.0]}, "time_step_limit")]
)
def test_numbers_that_do_not_fit_are_named(tmp_path: Path, change: dict[str, object], named: str) -> None:
    with pytest.raises(EngineError) as caught:
        load(write_model(tmp_path / "other", NEMOTRON_H | change))
    assert caught.value.code == "MODEL_INVALID"
    assert named in caught.value.message
