"""Llama: SmolLM2, and Llama 3.x with its scaled rope."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.text.families.family_checks import (
    check_bfloat16,
    check_float32,
    check_memory_pressure,
    check_mixed_batch,
    check_shows,
)
from tests.text.families.published_configs import LLAMA_32, SMOLLM2, changed
from tests.text.families.random_models import write_model, write_variant


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("smollm2"), SMOLLM2)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("llama"), LLAMA_32)


def test_smollm2_in_float32(smollm2: Path) -> None:
    check_float32(smollm2)


def test_smollm2_in_bfloat16(smollm2: Path) -> None:
    check_bfloat16(smollm2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_smollm2_in_a_crowd(smollm2: Path, dtype: str) -> None:
    check_mixed_batch(smollm2, dtype)


def test_smollm2_under_memory_pressure(smollm2: Path) -> None:
    check_memory_pressure(smollm2)


def test_llama_3_in_float32(llama: Path) -> None:
    check_float32(llama)


def test_llama_3_in_bfloat16(llama: Path) -> None:
    check_bfloat16(llama)


def test_llama_3_in_a_crowd(llama: Path) -> None:
    check_mixed_batch(llama)


def test_rope_shows_in_the_answers(smollm2: Path, llama: Path, tmp_path: Path) -> None:
    check_shows(smollm2, write_variant(tmp_path / "theta", smollm2, changed(SMOLLM2, rope_theta=10_000)))
    check_shows(llama, write_variant(tmp_path / "unscaled", llama, changed(LLAMA_32, rope_scaling=None)))
