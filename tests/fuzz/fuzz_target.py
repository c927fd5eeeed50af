"""A fuzzing target: a function that takes any bytes, and the errors it may raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.errors import AllmError
from services.worker.messages import EngineError

# Kept cases with this prefix run close to the limits: they are run, but never mutated.
SLOW = "slow-"
CORPUS = Path(__file__).parent / "corpus"
# The errors that a parser may raise: those with a documented code, in the service's form or the worker's.
DECLARED: tuple[type[BaseException], ...] = (AllmError, EngineError)


@dataclass(frozen=True)
class FuzzTarget:
    """One parser. `run` raises only `declared` errors, returns soon, and checks its results with `assert`."""

    name: str  # also of its folder in the corpus
    run: Callable[[bytes], object]
    declared: tuple[type[BaseException], ...] = DECLARED
    longest: int = 16 * 1024  # bytes of a case
    words: tuple[bytes, ...] = ()  # typical parts of the format
    children: bool = False  # true: other processes do the work: slower, and with separate limits
    cases: int = 300  # mutations in `make test-all`

    @property
    def corpus(self) -> list[Path]:
        """Returns the kept cases, in order."""
        folder = CORPUS / self.name
        return sorted(folder.iterdir()) if folder.is_dir() else []
