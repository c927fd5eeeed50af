"""`allm models test`: turns arguments into outcomes and shows them.

It shows a bar on a terminal, a line per check elsewhere, and a final table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from allm.models.v1 import model_pb2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from services.cli.models.bench import able_runtimes
from services.cli.models.catalog import Catalog, restored_afterwards
from services.cli.models.connection import Connection
from services.cli.models.page import Page, modality_word
from services.cli.problem import Problem
from services.cli.verify.check import Check, Outcome
from services.cli.verify.subject import Subject
from services.cli.verify.suite import chosen, run

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begun(self, number: int, check: Check) -> None:
        """Shows that a check begins. `number`: how many precede it."""
        self._bar.update(self._task, completed=number, description=f"{self._model_id} {check.name}")

    def done(self, outcome: Outcome) -> None:
        """Shows a check's outcome."""
        if self._lines:
            self._page.say(f"{outcome.name}: {outcome.verdict} ({outcome.seconds:.1f} s)")


def show_outcomes(page: Page, model_id: str, outcomes: Sequence[Outcome]) -> None:
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
) -> tuple[Subject, list[Outcome]]:
    """Runs the named checks, or all, on a model, and restores the model's state.

    Raises:
        Problem: it is not a chat model, there is no such check or runtime, or allm stopped answering.
    """
    checks = chosen(names)
    catalog = Catalog(connection)
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
