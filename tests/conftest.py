"""Fixtures for every test, the tiers of `make test` and `make test-all`, and the distribution of tests to processes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Models in the tests' own process wait as models in workers do: otherwise they slow down sharply on a busy machine.
# GNU OpenMP reads this when it is loaded (services/worker/process.py).
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# A shell's background jobs ignore SIGINT, and so do their children; some tests are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.presets"]  # the stacks that tests share
HERE = Path(__file__).parent
# Folders that only `make test-all` runs; elsewhere the marker `slow` marks single tests.
SLOW_FOLDERS = {
    HERE / name
    for name in (
        "bench",
        "chaos",
        "cluster",
        "conformance",
        "console",
        "deploy",
        "fuzz",
        "memory",
        "monitoring",
        "training/shapes_sd",
        "text/families",
        "tracing",
        "verification",
    )
}
# Fixtures of shared stacks have one parameter, whose id starts with this: a test's name includes its stack.
ON = "on_"


def pytest_configure(config: pytest.Config) -> None:
    """Counts every Python process that this run starts: see tests/tally."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        tally = tempfile.NamedTemporaryFile(prefix="allm-tally-")  # noqa: SIM115 (closed after the run)
        config.add_cleanup(tally.close)
        os.environ["TEST_TALLY"] = tally.name
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE / "tally"), os.environ.get("PYTHONPATH")]))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints how many stacks, services and workers the run started."""
    started = Counter(Path(os.environ["TEST_TALLY"]).read_text().splitlines())
    workers = sum(count for name, count in started.items() if name.endswith(".engine"))
    terminalreporter.section(f"started {started['services.cli serve']} stacks and {workers} workers")
    for name, count in started.most_common():
        terminalreporter.line(f"{count:6} {name}")


def fast(config: pytest.Config) -> bool:
    """Returns true for `make test`, which leaves out slow tests."""
    return bool(config.option.markexpr == "not slow")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips the slow folders in `make test`: they are not even imported."""
    return True if collection_path in SLOW_FOLDERS and fast(config) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disables the garbage collector: imports leave no garbage, and the search takes a third of the time.

    Later searches skip what the collection has created. It must import no slow library: see tests/late.py.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        imported = {"torch", "transformers", "diffusers", "whisper"} & sys.modules.keys()
        assert not imported, f"collecting the tests imports {imported}: use late()"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts tests: those of shared stacks first, then files by their number of slow tests, most first.

    Whole files are distributed in this order. The last ones are short, so the processes end together.
    """
    for item in items:
        if not SLOW_FOLDERS.isdisjoint(item.path.parents):
            item.add_marker("slow")
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (not group(item.nodeid).startswith(ON), -slow[item.path]))


def group(test: str) -> str:
    """Returns the part of a test's id that names its shared stack, or else its file."""
    parts = test.partition("[")[2].rstrip("]").split("-")
    return next((part for part in parts if part.startswith(ON)), test.partition("::")[0])


class ByFileOrStack(LoadScopeScheduling):
    """Distributes whole files, but all tests of a shared stack to one process: the machine has one such stack."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFileOrStack:
    return ByFileOrStack(config, log)
