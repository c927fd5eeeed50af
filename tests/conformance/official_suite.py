"""A pytest plugin for a run of an official SDK's own tests: its fixtures, the selection of cases, and the report.

It replaces the suite's conftest.py, which is not loaded. ALLM_SUITE names the module with the SDK's clients. The report
is JSON in the file that ALLM_SUITE_REPORT names.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from negotiation import Suite

_CASE = re.compile(
    r"test_(?:method|raw_response|streaming_response|path_params)_(\w+?)(?:_with_all_params)?(?:_overload_\d)?"
)

sdk = importlib.import_module(os.environ["ALLM_SUITE"])
outcomes: Counter[str] = Counter()
refusals: Counter[str] = Counter()
left_out: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the suite's files."""
    config.args = [f"tests/api_resources/{file}" for file in sdk.RULES.files]


@pytest.fixture(scope="session")
def suite() -> Iterator[Suite]:
    """The rules, and the replacements for the suite's ids."""
    with sdk.opened() as suite:
        suite.refusals = refusals
        yield suite


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest, suite: Suite) -> Iterator[Any]:
    """The client of synchronous cases; the parameter sets strict validation of responses."""
    with sdk.Client(**_settings(getattr(request, "param", True))) as found:
        found.suite = suite
        yield found


@pytest.fixture(scope="session")
async def async_client(request: pytest.FixtureRequest, suite: Suite) -> AsyncIterator[Any]:
    """The client of asynchronous cases; the parameter is `strict`, or names the HTTP library."""
    param = getattr(request, "param", True)
    options = param if isinstance(param, dict) else {"strict": param}
    library = sdk.HTTP_LIBRARIES[options.get("http_client", "httpx")]
    async with sdk.AsyncClient(**_settings(options.get("strict", True)), http_client=library()) as found:
        found.suite = suite
        yield found


def _settings(strict: bool) -> dict[str, Any]:
    return {**sdk.SETTINGS, "base_url": os.environ["TEST_API_BASE_URL"], "_strict_response_validation": strict}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Removes the cases that the table excludes."""
    kept = []
    for item in items:
        file = item.path.as_posix().partition("api_resources/")[2]
        case = _CASE.fullmatch(getattr(item, "originalname", item.name))
        operation = case[1] if case else ""
        if (file, operation) in sdk.RULES.left_out:
            left_out[f"{file} {operation}"] += 1
        else:
            kept.append(item)
    items[:] = kept


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Counts cases by file."""
    if report.when == "call" or report.outcome != "passed":
        file = report.nodeid.partition("api_resources/")[2].partition("::")[0]
        outcomes[f"{file} {report.outcome}"] += 1


def pytest_sessionfinish() -> None:
    """Writes the report: what happened, and what the tables list."""
    rules = sdk.RULES
    report = {
        "outcomes": outcomes,
        "refusals": refusals,
        "left_out": left_out,
        "files": rules.files,
        "listed_refusals": [f"{rule.route} {rule.param}" for rule in (*rules.refused, *rules.needed)],
        "listed_left_out": [f"{file} {operation}" for file, operation in rules.left_out],
    }
    Path(os.environ["ALLM_SUITE_REPORT"]).write_text(json.dumps(report))
