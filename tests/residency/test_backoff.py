"""The back-off: 1, 2, 4 ... 60 seconds after repeated failures, immediate refusals meanwhile, reset by one success."""

from __future__ import annotations

import pytest

from services.errors import ModelInvalid, ModelNotReady
from services.residency.backoff import FREE, Backoff
from services.residency.memory.reservation import ResidentKey

M = ResidentKey("m", 1, "llama_cpp")
OTHER = ResidentKey("other", 1, "llama_cpp")


class Time:
    """A clock that tests advance, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def backoff(time: Time) -> Backoff:
    return Backoff(time)


def pause(backoff: Backoff, time: Time) -> float:
    """Measures the remaining pause, to the second."""
    began = time.now
    while True:
        try:
            backoff.check(M)
        except (ModelInvalid, ModelNotReady):
            time.now += 1.0
        else:
            return time.now - began


def test_the_first_failures_cost_nothing(backoff: Backoff) -> None:
    for _ in range(FREE):
        backoff.load_failed(M, ModelInvalid("broken"))
        backoff.check(M)


def test_the_pauses_double_up_to_a_minute(backoff: Backoff, time: Time) -> None:
    for _ in range(FREE):
        backoff.load_failed(M, ModelInvalid("broken"))
    pauses = []
    for _ in range(9):
        backoff.load_failed(M, ModelInvalid("broken"))
        pauses.append(pause(backoff, time))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    for _ in range(5000):  # the counter must not overflow
        backoff.load_failed(M, ModelInvalid("broken"))
    assert pause(backoff, time) == 60


def test_failed_load_keeps_its_message_and_one_success_resets_it(backoff: Backoff) -> None:
    for _ in range(FREE + 3):
        backoff.load_failed(M, ModelInvalid("broken"))
    with pytest.raises(ModelInvalid, match="broken"):
        backoff.check(M)
    backoff.check(OTHER)
    backoff.loaded(M)
    assert backoff.problem(M) is None
    backoff.load_failed(M, ModelInvalid("broken"))
    backoff.check(M)


def test_a_worker_that_dies_again_and_again_says_when_to_ask_again(backoff: Backoff, time: Time) -> None:
    for _ in range(FREE + 2):
        backoff.died(M, "killed by SIGKILL")
    with pytest.raises(ModelNotReady, match=r"m failed 4 times in a row: killed by SIGKILL") as caught:
        backoff.check(M)
    assert caught.value.retry_after == 2
    time.now += 0.5
    with pytest.raises(ModelNotReady) as caught:
        backoff.check(M)
    assert caught.value.retry_after == 1.5, "what is left of it"


def test_deaths_count_on_though_the_model_loads_in_between(backoff: Backoff) -> None:
    """The model may load every time and die on the first request."""
    for _ in range(FREE + 1):
        backoff.loaded(M)
        backoff.died(M, "exit code 1")
    with pytest.raises(ModelNotReady):
        backoff.check(M)
    assert backoff.problem(M)
    backoff.loaded(M)
    assert backoff.problem(M) is None, "it is in memory now"
    backoff.died(M, "exit code 1")
    with pytest.raises(ModelNotReady, match="4 times"):
        backoff.check(M)
    backoff.loaded(M)
    backoff.served(M)
    backoff.died(M, "exit code 1")
    backoff.check(M)


def test_forgotten_failure_allows_an_immediate_retry(backoff: Backoff) -> None:
    for _ in range(FREE + 1):
        backoff.load_failed(M, ModelInvalid("broken"))
    assert list(backoff) == [M]
    backoff.forget(M)
    backoff.check(M)
    assert list(backoff) == []
