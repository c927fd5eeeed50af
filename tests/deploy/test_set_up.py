"""Tests the Makefile's set-up: llama.cpp compiles while packages are downloaded, and neither outlives the other's end.

Its Python is a script that stands for pip, which would download a gigabyte: `make test` itself runs the real one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import has_ended

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0
# Notes its process id and waits for the file that ends it, like a compiler that takes long.
PIP = """#!/bin/bash
case "$*" in
*" wheel "*) name=compile ;;
*" --requirement .venv/others.txt"*) name=download ;;
-c*) exec {python} "$@" ;;
*) exit 0 ;;
esac
echo $$ > $name.begun
cp .venv/others.txt asked 2>/dev/null
until [ -e $name.end ]; do read -rt 0.02 <> <(:); done
code=$(cat $name.end)
[ "$code" = 0 ] || echo "ERROR: $name failed"
exit $code
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "demo-weights.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "containers", tmp_path / "containers")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP.format(python=sys.executable))
    python.chmod(0o755)
    return tmp_path


@contextmanager
def set_up(place: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = ["make", ".venv/.run", *arguments]
    with (place / "output").open("w") as output:
        process = subprocess.Popen(
            command, cwd=place, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
    try:
        yield process
    finally:
        for name in ("compile", "download"):
            (place / f"{name}.end").write_text("0")
        process.wait(PATIENCE_SECONDS)


def begun(place: Path, name: str) -> int:
    """Waits for the process and returns its id."""
    path = place / f"{name}.begun"
    until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def end(place: Path, name: str, code: int) -> None:
    path = place / f"{name}.end"
    path.with_suffix(".new").write_text(str(code))
    path.with_suffix(".new").rename(path)


@pytest.mark.parametrize("last", ["compile", "download"])
def test_it_compiles_while_it_downloads_and_waits_for_both(place: Path, last: str) -> None:
    with set_up(place) as process:
        compiling, downloading = begun(place, "compile"), begun(place, "download")
        first = "download" if last == "compile" else "compile"
        end(place, first, 0)
        until(lambda: has_ended(downloading if first == "download" else compiling))
        assert process.poll() is None
        end(place, last, 0)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert (place / ".venv" / ".run").exists()
    asked = (place / "asked").read_text().splitlines()
    assert "diffusers>=0.42" in asked
    assert not [one for one in asked if "llama" in one and "llama-cpp" in one]


@pytest.mark.parametrize(("failing", "other"), [("compile", "download"), ("download", "compile")])
def test_a_failure_of_one_fails_the_set_up_and_leaves_no_process(place: Path, failing: str, other: str) -> None:
    with set_up(place) as process:
        pids = {name: begun(place, name) for name in (failing, other)}
        end(place, failing, 1)
        if failing == "compile":
            end(place, other, 0)  # pip finishes what it has begun
        assert process.wait(PATIENCE_SECONDS) != 0
        until(lambda: all(map(has_ended, pids.values())))
    assert f"ERROR: {failing} failed" in (place / "output").read_text()
    assert not (place / ".venv" / ".run").exists()


def test_ctrl_c_ends_both(place: Path) -> None:
    with set_up(place) as process:
        pids = [begun(place, "compile"), begun(place, "download")]
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) != 0
        until(lambda: all(map(has_ended, pids)))


def test_without_text_nothing_is_compiled(place: Path) -> None:
    with set_up(place, "EXTRAS=audio,gateway") as process:
        end(place, "download", 0)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert not (place / "compile.begun").exists()
