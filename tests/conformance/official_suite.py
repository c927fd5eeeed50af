"""A pytest plugin for a run of the official SDK's own tests: its fixtures, the selection of cases, and the report.

It replaces the suite's conftest.py, which is not loaded. The report is JSON in the file that ALLM_SUITE_REPORT
names.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from negotiation import AsyncNegotiatingOpenAI, NegotiatingOpenAI
from openai import DefaultAioHttpClient, DefaultAsyncHttpx2Client, OpenAI
from stand_ins import StandIns
from suite_rules import LEFT_OUT

_CASE = re.compile(
    r"test_(?:method|raw_response|streaming_response|path_params)_(\w+?)(?:_with_all_params)?(?:_overload_\d)?"
)
_SETTINGS: dict[str, Any] = {"api_key": "unused", "admin_api_key": "unused", "max_retries": 0}

outcomes: Counter[str] = Counter()
refusals: Counter[str] = Counter()
left_out: Counter[str] = Counter()


@pytest.fixture(scope="session")
def stand_ins() -> Iterator[StandIns]:
    """The replacements for the suite's ids."""
    with OpenAI(base_url=os.environ["TEST_API_BASE_URL"], **_SETTINGS) as plain:
        given = (os.environ[name] for name in ("ALLM_MODEL", "ALLM_EMBEDDER", "ALLM_SOURCE"))
        yield StandIns(plain, *given)


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest, stand_ins: StandIns) -> Iterator[OpenAI]:
    """The client of synchronous cases; the parameter sets strict validation of responses."""
    strict = getattr(request, "param", True)
    with NegotiatingOpenAI(
        base_url=os.environ["TEST_API_BASE_URL"], _strict_response_validation=strict, **_SETTINGS
    ) as found:
        found.stand_ins, found.refusals = stand_ins, refusals
        yield found


@pytest.fixture(scope="session")
async def async_client(request: pytest.FixtureRequest, stand_ins: StandIns) -> AsyncIterator[AsyncNegotiatingOpenAI]:
    """The client of asynchronous cases; the parameter is `strict`, or names the HTTP library."""
    param = getattr(request, "param", True)
    options = param if isinstance(param, dict) else {"strict": param}
    library = DefaultAioHttpClient if options.get("http_client") == "aiohttp" else DefaultAsyncHttpx2Client
    async with AsyncNegotiatingOpenAI(
        base_url=os.environ["TEST_API_BASE_URL"],
        http_client=library(),
        _strict_response_validation=options.get("strict", True),
        **_SETTINGS,
    ) as found:
        found.stand_ins, found.refusals = stand_ins, refusals
        yield found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Removes the cases that the table excludes."""
    kept = []
    for item in items:
        file = item.path.as_posix().partition("api_resources/")[2]
        case = _CASE.fullmatch(getattr(item, "originalname", item.name))
        operation = case[1] if case else ""
        if (file, operation) in LEFT_OUT:
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
    """Writes the report."""
    report = {"outcomes": outcomes, "refusals": refusals, "left_out": left_out}
    Path(os.environ["ALLM_SUITE_REPORT"]).write_text(json.dumps(report))
