"""The short form of `make chaos`: each fault once, under load through the gateway, a cancel storm and a soak."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.all_faults import SHORT
from tests.chaos.cancel_storm import cancel_storm
from tests.chaos.chaos_stack import ChaosStack, chaos_stack
from tests.chaos.fault import Fault, suffer, table
from tests.chaos.outcome import Outcome
from tests.chaos.soak import soak

STORM = 60  # requests
SOAK_SECONDS = 4
SOAK_SAMPLES = 4
PAUSE_SECONDS = 0.3  # a fault needs running requests, not a fully loaded processor
# Allowed growth of memory. The long forms allow 2%; so few requests fill the caches and arenas of a warm process only
# in part, and that part is random.
MOST_GROWTH = 1.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosStack]:
    """The stack into which all faults are injected."""
    with chaos_stack(tmp_path_factory.mktemp("chaos"), short=True) as stack:
        yield stack


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name) for fault in SHORT])
async def test_every_request_has_a_right_answer_or_a_clear_end(broken: ChaosStack, fault: Fault) -> None:
    if "disk" in fault.name and broken.disk is None:
        pytest.skip("file systems can only be mounted by the superuser")
    found = await suffer(broken, fault, PAUSE_SECONDS)
    print(*table([found]), found.tally.reasons(Outcome.REFUSED, Outcome.CUT), sep="\n")
    tally = found.tally
    assert not tally.of(Outcome.HUNG), tally.reasons(Outcome.HUNG)
    assert not tally.of(Outcome.LOST), tally.reasons(Outcome.LOST)
    assert not [attempt for attempt in tally.failed if attempt.kind in fault.spared]
    assert fault.may_cut or not found.restarted, "only a fault that stops services may cost one"


async def test_cancelled_requests_leave_nothing_behind(broken: ChaosStack) -> None:
    found = await cancel_storm(broken.operator.stack, broken.known, STORM)
    print(found)
    assert found.cancelled > STORM // 4, "most are meant to be in the middle of it"
    assert found.growth <= MOST_GROWTH, found


async def test_a_mixed_load_fails_nowhere_and_leaves_nothing_behind(broken: ChaosStack) -> None:
    found = await soak(broken.operator.stack, broken.known, SOAK_SECONDS, SOAK_SAMPLES)
    print(*found.lines(), sep="\n")
    assert not found.tally.failed
    assert found.growth <= MOST_GROWTH, found.lines()
