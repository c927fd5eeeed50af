"""Many cases inside one test: a failure names its case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(**named: object) -> Iterator[None]:
    """Adds the values of the case to an error: `for seed in range(300): with case(seed=seed): ...`."""
    try:
        yield
    except BaseException as error:
        error.add_note("in the case " + ", ".join(f"{name}={value!r}" for name, value in named.items()))
        raise
