"""All checks in order, and a function that runs them on a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from services.cli.models.connection import Lost
from services.cli.problem import Problem
from services.cli.verify import cancelling, ending, likelihood, memory, recall, sameness, schema, tooling
from services.cli.verify import template as chat_template
from services.cli.verify.check import Check, Failed, Outcome, Skipped, Verdict
from services.cli.verify.subject import Subject

CHECKS = (
    memory.LOAD_CHECK,
    chat_template.CHECK,
    likelihood.CHECK,
    sameness.AGAIN_CHECK,
    ending.CHECK,
    sameness.STREAM_CHECK,
    sameness.BATCH_CHECK,
    recall.CHECK,
    tooling.CHECK,
    schema.CHECK,
    cancelling.CHECK,
    memory.UNLOAD_CHECK,
)
LOAD = memory.LOAD_CHECK.name
NO_SENSE = "not meaningful on random weights"


def chosen(names: Sequence[str]) -> list[Check]:
    """Returns the named checks in order, always with loading; all if none is named. Raises Problem."""
    known = [check.name for check in CHECKS]
    for name in names:
        if name not in known:
            raise Problem(f"there is no check {name!r}; there are {', '.join(known)}")
    return [check for check in CHECKS if not names or check.name in (LOAD, *names)]


def run(
    subject: Subject,
    checks: Sequence[Check],
    begun: Callable[[int, Check], None],
    done: Callable[[Outcome], None],
) -> list[Outcome]:
    """Runs checks one after the other; reports the beginning and the end of each.

    Raises:
        Lost: allm does not answer any more.
    """
    outcomes: list[Outcome] = []
    for number, check in enumerate(checks):
        begun(number, check)
        broken = bool(outcomes) and outcomes[0].verdict == "failed"
        outcomes.append(_not_loaded(check) if broken else _outcome(subject, check))
        done(outcomes[-1])
    return outcomes


def _outcome(subject: Subject, check: Check) -> Outcome:
    began = time.monotonic()
    verdict: Verdict = "passed"
    likely = ""
    try:
        seen = NO_SENSE if check.sense and subject.random else check.run(subject)
        if seen is NO_SENSE:
            verdict = "skipped"
    except Skipped as skipped:
        verdict, seen = "skipped", str(skipped)
    except Failed as failed:
        verdict, seen, likely = "failed", failed.seen, failed.likely
    except Lost:
        raise
    except Problem as problem:
        verdict, seen, likely = "failed", str(problem), "the cause in the message; the service's logs may give details"
    return Outcome(
        name=check.name,
        verdict=verdict,
        compared=check.compared,
        seen=seen,
        likely=likely,
        seconds=round(time.monotonic() - began, 1),
    )


def _not_loaded(check: Check) -> Outcome:
    return Outcome(name=check.name, verdict="skipped", compared=check.compared, seen="the model is not loaded")
