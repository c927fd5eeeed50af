"""What became of a request, and the count of many."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a request ended, seen from its client."""

    COMPLETED = "completed"  # whole, and what it should be
    REFUSED = "refused"  # an error that says what is wrong
    CUT = "cut"  # the connection was refused or broke: the client knows that there is no answer
    HUNG = "hung"  # no end within its limit
    LOST = "lost"  # it looks complete and is not what it should be, ended without its terminal event, or says nothing


FOLDERS, NUMBER = re.compile(r"(/[\w.-]+)+/"), re.compile(r"worker \d+")
FAILURES = tuple(outcome for outcome in Outcome if outcome is not Outcome.COMPLETED)


@dataclass(frozen=True)
class Attempt:
    """A request that has ended. Times are those of `time.monotonic`."""

    kind: str
    outcome: Outcome
    started: float
    ended: float
    why: str = ""  # what it was told, or what is wrong with what it got


class RefusedCall(Exception):
    """The request got an error that says what is wrong; the message is that."""


class CutCall(Exception):
    """The connection was refused or broke."""


class LostAnswer(Exception):
    """What came is not what should have come; the message says in what way."""


class Tally:
    """Attempts, counted. `may_cut`: whether a broken connection is a fair end, as where a server dies."""

    def __init__(self, attempts: Iterable[Attempt], *, may_cut: bool = True) -> None:
        self.attempts = list(attempts)
        self._may_cut = may_cut

    def count(self, outcome: Outcome) -> int:
        """How many ended like that."""
        return len(self.of(outcome))

    def of(self, outcome: Outcome) -> list[Attempt]:
        """Those that ended like that; unfair cuts count as lost."""
        return [attempt for attempt in self.attempts if self._fair(attempt.outcome) is outcome]

    @property
    def failed(self) -> list[Attempt]:
        """Those without their answer, for whatever reason."""
        return [attempt for attempt in self.attempts if attempt.outcome is not Outcome.COMPLETED]

    def reasons(self, *outcomes: Outcome) -> dict[str, int]:
        """What they were told, and how many of them were; without what differs from run to run."""
        found: dict[str, int] = {}
        for outcome in outcomes:
            for attempt in self.of(outcome):
                text = f"{attempt.kind}: {FOLDERS.sub('.../', NUMBER.sub('worker N', attempt.why))}"
                found[text] = found.get(text, 0) + 1
        return found

    def _fair(self, outcome: Outcome) -> Outcome:
        return Outcome.LOST if outcome is Outcome.CUT and not self._may_cut else outcome
