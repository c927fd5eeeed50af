"""The device of a rank: never one that torch cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.text.engine.messages import EngineOptions
from services.worker.messages import EngineError
from tests.late import late
from tests.text.engine.session import options as session_options

torch = late("torch")
executor = late("services.text.engine.runtimes.torch.executor")


def options(**changes) -> EngineOptions:
    return session_options(Path(), **{"gpu": True, **changes})


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch):
    def having(*, cuda: int, mps: bool) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return having


def test_without_a_gpu_requested_it_is_the_processor(has) -> None:
    has(cuda=2, mps=True)
    assert executor.rank_device(options(gpu=False), 0).type == "cpu"


def test_each_rank_has_its_own_gpu(has) -> None:
    has(cuda=2, mps=False)
    assert str(executor.rank_device(options(device="cuda", tensor_parallel=2), 1)) == "cuda:1"
    with pytest.raises(EngineError, match="no usable GPU for rank 2"):
        executor.rank_device(options(device="cuda", tensor_parallel=3), 2)


def test_metal_computes_whole_models(has) -> None:
    has(cuda=0, mps=True)
    assert executor.rank_device(options(device="mps"), 0).type == executor.rank_device(options(), 0).type == "mps"
    for changes in ({"device": "cuda"}, {"device": "mps", "tensor_parallel": 2}):
        with pytest.raises(EngineError, match="torch finds no usable GPU"):
            executor.rank_device(options(**changes), 0)


def test_a_missing_gpu_is_an_error_not_the_processor(has) -> None:
    has(cuda=0, mps=False)
    for device in ("", "cuda", "mps"):
        with pytest.raises(EngineError, match="torch finds no usable GPU"):
            executor.rank_device(options(device=device), 0)
