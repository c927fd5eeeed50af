"""The problems that end the `allm` command: a plain sentence on the standard error, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from services.settings.setting import SettingError


class Problem(Exception):
    """An error that ends the command; the message gives the cause and a remedy, without a stack trace."""


class Interrupted(Problem):
    """Ctrl-C; the work that was begun continues without us."""


EXIT_PROBLEM = 1
EXIT_BAD_SETTING = 2
EXIT_INTERRUPTED = 130


@contextmanager
def plainly() -> Iterator[None]:
    """Turns a Problem raised in the block into a sentence and an exit status."""
    try:
        yield
    except SettingError as error:
        _end(str(error), EXIT_BAD_SETTING)
    except Interrupted as interrupted:
        _end(str(interrupted), EXIT_INTERRUPTED)
    except Problem as problem:
        _end(str(problem), EXIT_PROBLEM)


def _end(sentence: str, status: int) -> NoReturn:
    print(f"allm: {sentence}", file=sys.stderr)
    raise typer.Exit(status)
