"""What is fuzzed: a function that takes any bytes, and what it may raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.errors import AllmError
from services.worker.messages import EngineError

# Kept cases of this name take all that they may have: they are run, and nothing is made of them.
SLOW = "slow-"
CORPUS = Path(__file__).parent / "corpus"
# What may leave a parser: an error of the ten codes, in the service's form or the worker's.
DECLARED: tuple[type[BaseException], ...] = (AllmError, EngineError)


@dataclass(frozen=True)
class FuzzTarget:
    """One parser. `run` raises nothing but `declared`, ends soon, and checks its results with `assert`."""

    name: str  # of its folder in the corpus, too
    run: Callable[[bytes], object]
    declared: tuple[type[BaseException], ...] = DECLARED
    longest: int = 16 * 1024  # bytes of a case
    words: tuple[bytes, ...] = ()  # what the format is made of
    children: bool = False  # whether processes of its own do the work: slower, and with limits of their own
    cases: int = 300  # mutations in `make test-all`

    @property
    def corpus(self) -> list[Path]:
        """The kept cases, in order."""
        folder = CORPUS / self.name
        return sorted(folder.iterdir()) if folder.is_dir() else []
