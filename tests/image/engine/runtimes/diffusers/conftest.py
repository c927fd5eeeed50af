"""Tiny pipelines of every family, loaded once, on one thread because others may use the machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from services.image.engine.messages import EngineOptions
from tests.image.engine.tiny_pipelines import saved
from tests.late import late

diffusers_engine = late("services.image.engine.runtimes.diffusers.engine")


@pytest.fixture(scope="package")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function that returns the folder of a family's pipeline."""
    root = tmp_path_factory.mktemp("pipelines")
    return cache(lambda family: saved(family, root / family))


@pytest.fixture(scope="package")
def engine_of(folder_of: Callable[[str], Path]) -> Callable[[str], diffusers_engine.DiffusersEngine]:
    """Returns a function that returns a family's loaded pipeline."""

    @cache
    def load(family: str) -> diffusers_engine.DiffusersEngine:
        fractions: list[float] = []
        options = EngineOptions(model_id=family, path=str(folder_of(family)), threads=1, gpu=False)
        loaded = diffusers_engine.DiffusersEngine(options, fractions.append)
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1.0
        return loaded

    return load
