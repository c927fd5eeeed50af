"""Estimated memory against the workers' actual use under load: the demo models on the real stack.

The comparison allows a factor: batches, and so peaks, vary by chance. `python -m bench.needs` reports the peaks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.needs import CASES, MIB, Serving, measured, models_setting
from tests.stack import environment, running_stack

# The allowed ratio between use and reservation, in both directions: on a busy machine, requests that arrive one by one
# leave batches and so memory unused. A wrong formula deviates by more.
FACTOR = 2.0
NO_HUGE_PAGES = 41  # PR_SET_THP_DISABLE; children inherit it

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from Linux' /proc"),
]


@pytest.fixture(scope="module")
def small_pages() -> Iterator[None]:
    """Disables huge pages: their number is chance, and they make up half of a worker's heaps."""
    assert ctypes.CDLL(None).prctl(NO_HUGE_PAGES, 1, 0, 0, 0) == 0
    yield
    assert ctypes.CDLL(None).prctl(NO_HUGE_PAGES, 0, 0, 0, 0) == 0


@pytest.fixture(scope="module")
def demo(small_pages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Runs all services with all demo models."""
    settings = {"ALLM_MODELS": models_setting(), "ALLM_AUDIO_REPLICAS": "1", "ALLM_IMAGE_REPLICAS": "1"}
    with running_stack(tmp_path_factory.mktemp("needs") / "home", **settings) as stack:
        yield Serving(f"http://127.0.0.1:{stack.port}", stack.process.pid, environment(stack.home))


@pytest.mark.parametrize("model", sorted(CASES()))
def test_a_model_takes_what_it_is_said_to_need(demo: Serving, model: str) -> None:
    found = measured(model, demo)
    assert min(found.need.parts.values()) > 0
    assert found.need.total == sum(found.need.parts.values())
    sizes = f"{found.above / MIB:.0f} above an idle worker of {found.idle / MIB:.0f}"
    figures = f"said to need {found.said / MIB:.0f} MiB, took {sizes}: {found.need}"
    assert found.above <= FACTOR * found.said, figures
    assert found.said <= FACTOR * found.above, figures
    assert found.worker / FACTOR <= found.idle <= FACTOR * found.worker, figures
