"""`allm models test`: all checks in order, from loading the model to unloading it; runs them and shows their outcomes.

It shows a bar on a terminal, a line per check elsewhere, and a final table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from allm.models.v1 import model_pb2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from services.byte_count import bytes_word
from services.cli.models.bench import able_runtimes
from services.cli.models.catalog import CatalogClient, restored_afterwards
from services.cli.models.connection import Connection, Late, Lost
from services.cli.models.page import Page, modality_word
from services.cli.models.progress import Stage, loaded, of_replica, stage
from services.cli.problem import Problem
from services.cli.verify import chat_template, ending, likelihood, pictures, sameness, tools_and_schemas
from services.cli.verify.check import Check, CheckFailed, CheckOutcome, Skipped, Verdict
from services.cli.verify.subject import Subject

LOAD_SECONDS = 3600.0
UNLOAD_SECONDS = 60.0


def _load(subject: Subject) -> str:
    began = time.monotonic()
    wanted = subject.catalog.load(subject.model.id, subject.runtime)
    reached: Stage | None = None
    try:
        for current in subject.catalog.follow(wanted.id, LOAD_SECONDS):
            if reached := loaded(subject.runtime, everywhere=True)(current):
                break
    except Late:
        now = stage(subject.catalog.get(wanted.id).model, wanted.generation)
        raise CheckFailed(f"still {now.state} after {LOAD_SECONDS:g} seconds", "see the service's logs") from None
    if reached is None or reached.state != "loaded":
        why = reached.reason if reached else "its progress cannot be read"
        raise CheckFailed(f"{reached.state if reached else 'unknown'}: {why}", "the model's files, as the reason says")
    return f"with {reached.runtime} on {reached.device} in {time.monotonic() - began:.1f} s"


def _unload(subject: Subject) -> str:
    peak = max((each.peak_memory_bytes for each in subject.catalog.get(subject.model.id).model.replicas), default=0)
    began = time.monotonic()
    subject.catalog.unload(subject.model.id)
    try:
        for current in subject.catalog.follow(subject.model.id, UNLOAD_SECONDS):
            if not any(map(_held, current.replicas)):
                return f"in {time.monotonic() - began:.1f} s; its peak memory was {bytes_word(peak)}"
    except Late:
        pass
    raise CheckFailed(
        f"still in memory after {UNLOAD_SECONDS:g} seconds",
        "a cancelled request still runs, another client uses the model, or its worker does not end",
    )


LOAD_CHECK = Check(name="load", compared="the state of every replica: `loaded`", run=_load)
UNLOAD_CHECK = Check(
    name="unload",
    compared=f"the reports of all replicas within {UNLOAD_SECONDS:g} seconds of unloading: no worker and no memory",
    run=_unload,
)


def _held(replica: model_pb2.ReplicaStatus) -> bool:
    """Reports whether a worker exists, or has not been reported as gone."""
    return of_replica(replica, 0).state == "loaded" or replica.peak_memory_bytes > 0


CHECKS = (
    LOAD_CHECK,
    chat_template.CHECK,
    likelihood.LIKELIHOOD_CHECK,
    sameness.AGAIN_CHECK,
    ending.STOP_CHECK,
    sameness.STREAM_CHECK,
    sameness.BATCH_CHECK,
    likelihood.LONG_PROMPT_CHECK,
    tools_and_schemas.TOOL_CHECK,
    tools_and_schemas.SCHEMA_CHECK,
    pictures.PICTURE_CHECK,
    ending.CANCEL_CHECK,
    UNLOAD_CHECK,
)
NO_SENSE = "not meaningful on random weights"


def chosen(names: Sequence[str]) -> list[Check]:
    """Returns the named checks in order, always with loading; all if none is named. Raises Problem."""
    known = [check.name for check in CHECKS]
    for name in names:
        if name not in known:
            raise Problem(f"there is no check {name!r}; there are {', '.join(known)}")
    return [check for check in CHECKS if not names or check.name in (LOAD_CHECK.name, *names)]


def run(
    subject: Subject,
    checks: Sequence[Check],
    begun: Callable[[int, Check], None],
    done: Callable[[CheckOutcome], None],
) -> list[CheckOutcome]:
    """Runs checks one after the other; reports the beginning and the end of each.

    Raises:
        Lost: allm does not answer any more.
    """
    outcomes: list[CheckOutcome] = []
    for number, check in enumerate(checks):
        begun(number, check)
        broken = bool(outcomes) and outcomes[0].verdict == "failed"
        outcomes.append(_not_loaded(check) if broken else _outcome(subject, check))
        done(outcomes[-1])
    return outcomes


def _outcome(subject: Subject, check: Check) -> CheckOutcome:
    began = time.monotonic()
    verdict: Verdict = "passed"
    likely = ""
    try:
        seen = NO_SENSE if check.sense and subject.random else check.run(subject)
        if seen is NO_SENSE:
            verdict = "skipped"
    except Skipped as skipped:
        verdict, seen = "skipped", str(skipped)
    except CheckFailed as failed:
        verdict, seen, likely = "failed", failed.seen, failed.likely
    except Lost:
        raise
    except Problem as problem:
        verdict, seen, likely = "failed", str(problem), "the cause in the message; the service's logs may give details"
    return CheckOutcome(
        name=check.name,
        verdict=verdict,
        compared=check.compared,
        seen=seen,
        likely=likely,
        seconds=round(time.monotonic() - began, 1),
    )


def _not_loaded(check: Check) -> CheckOutcome:
    return CheckOutcome(name=check.name, verdict="skipped", compared=check.compared, seen="the model is not loaded")


HEADERS = ("CHECK", "RESULT", "SECONDS", "SEEN")


class CheckScreen:
    """Shows checks as they run, on the standard error, during the `with` block."""

    def __init__(self, model_id: str, total: int, console: Console | None = None) -> None:
        console = console or Console(highlight=False, stderr=True)
        self._page = Page(console)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(model_id, total=total)
        self._model_id, self._lines = model_id, not console.is_terminal

    def __enter__(self) -> CheckScreen:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begun(self, number: int, check: Check) -> None:
        """Shows that a check begins. `number`: how many precede it."""
        self._bar.update(self._task, completed=number, description=f"{self._model_id} {check.name}")

    def done(self, outcome: CheckOutcome) -> None:
        """Shows a check's outcome."""
        if self._lines:
            self._page.say(f"{outcome.name}: {outcome.verdict} ({outcome.seconds:.1f} s)")


def show_outcomes(page: Page, model_id: str, outcomes: Sequence[CheckOutcome]) -> None:
    """Prints the table, then the details of failures."""
    rows = [(each.name, each.verdict, f"{each.seconds:.1f}", each.seen) for each in outcomes]
    page.table(HEADERS, rows, right=frozenset({"SECONDS"}))
    failed = [each for each in outcomes if each.verdict == "failed"]
    for each in failed:
        page.heading(f"{each.name} failed")
        page.pairs([("compared", each.compared), ("seen", each.seen), ("likely", each.likely)])
    counts = {verdict: sum(each.verdict == verdict for each in outcomes) for verdict in ("passed", "failed", "skipped")}
    page.say(f"{model_id}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items() if count)}")


def verify(
    connection: Connection,
    model_id: str,
    say: Callable[[str], None],
    *,
    runtime: str = "",
    names: Sequence[str] = (),
    random: bool = False,
    prompt_tokens: int = 1000,
) -> tuple[Subject, list[CheckOutcome]]:
    """Runs the named checks, or all, on a model, and restores the model's state.

    Raises:
        Problem: it is not a chat model, there is no such check or runtime, or allm stopped answering.
    """
    checks = chosen(names)
    catalog = CatalogClient(connection)
    explained = catalog.explain(model_id)
    model = explained.model
    if model.modality != model_pb2.MODALITY_TEXT:
        kind = modality_word(model.modality)
        raise Problem(f"{model.id} is a model for {kind}: `allm models test` tests only text models")
    if "chat" not in model.capabilities:
        raise Problem(f"{model.id} cannot chat: `allm models test` tests only models that can")
    if runtime:
        able_runtimes(explained, runtime)
    subject = Subject(
        model=model,
        catalog=catalog,
        chat=connection.chat,
        text=connection.text,
        runtime=runtime,
        random=random,
        prompt_tokens=prompt_tokens,
    )
    with restored_afterwards(catalog, model.id, say), CheckScreen(model.id, len(checks)) as screen:
        return subject, run(subject, checks, screen.begun, screen.done)
