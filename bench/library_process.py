"""A library in its own process, which answers each line of JSON with a line of JSON."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from bench.contender import BUILD_DIR

STOP_SECONDS = 10.0
T = TypeVar("T")


class LibraryProcess(Generic[T]):
    """A process that measures levels; `timing` is the type of its answers."""

    def __init__(self, name: str, process: subprocess.Popen[str], timing: type[T]) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._timing = timing

    def measure(self, level: object) -> T:
        """Sends a level and returns its timing. Raises RuntimeError if the process has ended."""
        given, taken = self._process.stdin, self._process.stdout
        if given is None or taken is None:
            raise RuntimeError("the process has no pipes")
        print(msgspec.json.encode(level).decode(), file=given, flush=True)
        line = taken.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self._process.wait()}")
        return msgspec.json.decode(line, type=self._timing)


@contextmanager
def library_process(
    module: str, plan: object, name: str, timing: type[T], environ: Mapping[str, str] | None = None
) -> Iterator[LibraryProcess[T]]:
    """Runs `python -m module PLAN` until the block ends; waits for its first line, which says that it is ready."""
    log = BUILD_DIR / "logs" / f"{module.rpartition('.')[2]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, msgspec.json.encode(plan).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environ or {})},
            cwd=Path(__file__).parents[1],
        )
    try:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"{name} did not start: {log} says why")
        yield LibraryProcess(name, process, timing)
    finally:
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
