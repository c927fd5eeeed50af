"""The output of `allm models test`, during the run and at the end."""

from __future__ import annotations

import io

from rich.console import Console

from services.cli.models.page import Page
from services.cli.verify.check import CheckOutcome
from services.cli.verify.suite import CHECKS, CheckScreen, show_outcomes

PASSED = CheckOutcome(name="load", verdict="passed", compared="this with that", seen="all is well", seconds=1.25)
FAILED = CheckOutcome(
    name="batch", verdict="failed", compared="one with eight", seen="they part", likely="masks", seconds=2.0
)


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=120, highlight=False, color_system=None), file


def test_a_bar_names_the_check_that_runs_on_a_terminal() -> None:
    shown, file = console(terminal=True)
    with CheckScreen("m", len(CHECKS), shown) as screen:
        screen.begun(3, CHECKS[3])
        screen.done(PASSED)
    assert f"m {CHECKS[3].name}" in file.getvalue()
    assert f"3/{len(CHECKS)}" in file.getvalue()
    assert "passed" not in file.getvalue()


def test_without_a_terminal_each_check_has_a_line() -> None:
    shown, file = console(terminal=False)
    with CheckScreen("m", len(CHECKS), shown) as screen:
        screen.begun(0, CHECKS[0])
        screen.done(PASSED)
    assert file.getvalue().splitlines() == ["load: passed (1.2 s)"]


def test_the_table_and_what_failed_at_length() -> None:
    shown, file = console(terminal=False)
    show_outcomes(Page(shown), "m", [PASSED, FAILED])
    lines = file.getvalue().splitlines()
    assert lines[0].split() == ["CHECK", "RESULT", "SECONDS", "SEEN"]
    assert "likely    masks" in lines
    assert "compared  one with eight" in lines
    assert lines[-1] == "m: 1 passed, 1 failed"
