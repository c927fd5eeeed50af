"""The outcome of a request, and a tally of many."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """The end of a request, as its client sees it."""

    COMPLETED = "completed"  # complete and correct
    REFUSED = "refused"  # an error that names the problem
    CUT = "cut"  # the connection was refused or broke: the client notices the missing answer
    HUNG = "hung"  # no end within the time limit
    LOST = "lost"  # looks complete but is wrong, lacks its terminal event, or is empty


FOLDERS, NUMBER = re.compile(r"(/[\w.-]+)+/"), re.compile(r"worker \d+")
FAILURES = tuple(outcome for outcome in Outcome if outcome is not Outcome.COMPLETED)


@dataclass(frozen=True)
class Attempt:
    """A request that has ended. Times are those of `time.monotonic`."""

    kind: str
    outcome: Outcome
    started: float
    ended: float
    why: str = ""  # the error message, or the defect of the answer


class RefusedCall(Exception):
    """The request got an error that names the problem; the message is that error."""


class CutCall(Exception):
    """The connection was refused or broke."""


class LostAnswer(Exception):
    """The answer is wrong; the message names the defect."""


class Tally:
    """Counts attempts by outcome. `may_cut`: a broken connection is acceptable, because a server dies."""

    def __init__(self, attempts: Iterable[Attempt], *, may_cut: bool = True) -> None:
        self.attempts = list(attempts)
        self._may_cut = may_cut

    def count(self, outcome: Outcome) -> int:
        """Returns the number of attempts with that outcome."""
        return len(self.of(outcome))

    def of(self, outcome: Outcome) -> list[Attempt]:
        """Returns the attempts with that outcome; unacceptable cuts count as lost."""
        return [attempt for attempt in self.attempts if self._fair(attempt.outcome) is outcome]

    @property
    def failed(self) -> list[Attempt]:
        """Returns the attempts without an answer, for whatever reason."""
        return [attempt for attempt in self.attempts if attempt.outcome is not Outcome.COMPLETED]

    def reasons(self, *outcomes: Outcome) -> dict[str, int]:
        """Counts attempts by their error message, without the parts that differ from run to run."""
        found: dict[str, int] = {}
        for outcome in outcomes:
            for attempt in self.of(outcome):
                text = f"{attempt.kind}: {FOLDERS.sub('.../', NUMBER.sub('worker N', attempt.why))}"
                found[text] = found.get(text, 0) + 1
        return found

    def _fair(self, outcome: Outcome) -> Outcome:
        return Outcome.LOST if outcome is Outcome.CUT and not self._may_cut else outcome
