"""Fixtures for every test, the tiers of `make test` and `make test-all`, and how tests are dealt out to processes."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Models that run in the tests' own process wait as those in workers do, or they collapse beside whatever else runs: GNU
# OpenMP reads this when it is loaded (services/worker/environment.py).
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# What is started in the background of a shell has SIGINT ignored, and its children too; some tests are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.presets"]  # the stacks that tests share
HERE = Path(__file__).parent
# Folders that only `make test-all` runs; elsewhere the marker `slow` says it of single tests.
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
# Fixtures of shared stacks have one parameter, whose id begins so: the name of every test on one says on which.
ON = "on_"


def pytest_configure(config: pytest.Config) -> None:
    """Has every Python process that this run starts counted: see tests/tally."""
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
    """Whether this run is `make test`, without what is slow."""
    return bool(config.option.markexpr == "not slow")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test` does not even import the slow folders."""
    return True if collection_path in SLOW_FOLDERS and fast(config) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is imported becomes garbage: looking for it takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of shared stacks come first, then files by their number of slow tests, most first.

    Files are dealt out whole and in this order. What is left for the end is short, so the processes end together.
    """
    for item in items:
        if not SLOW_FOLDERS.isdisjoint(item.path.parents):
            item.add_marker("slow")
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (not group(item.nodeid).startswith(ON), -slow[item.path]))


def group(test: str) -> str:
    """The part of a test's id that names the shared stack it runs on; else its file."""
    parts = test.partition("[")[2].rstrip("]").split("-")
    return next((part for part in parts if part.startswith(ON)), test.partition("::")[0])


class ByFileOrStack(LoadScopeScheduling):
    """Deals out whole files, but all tests of one shared stack to one process: the machine has one such stack."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFileOrStack:
    return ByFileOrStack(config, log)
