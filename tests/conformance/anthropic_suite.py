"""The tests of Anthropic's SDK: its clients, and what replaces the ids of the suite."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anthropic import Anthropic, AsyncAnthropic, BadRequestError, DefaultAioHttpClient, DefaultAsyncHttpxClient, Omit
from anthropic_rules import RULES
from negotiation import AsyncNegotiating, Negotiating, Suite

SETTINGS: dict[str, Any] = {"api_key": "unused", "max_retries": 0}
HTTP_LIBRARIES = {"httpx": DefaultAsyncHttpxClient, "aiohttp": DefaultAioHttpClient}
TOKENS = 1  # limit of an answer: the 1,024 of the suite would only take longer
_QUOTED = re.compile(r"'([^']+)'")


class Client(Negotiating, Anthropic):
    """The official client."""


class AsyncClient(AsyncNegotiating, AsyncAnthropic):
    """The official asynchronous client."""


class StandIns:
    """Replaces the suite's invented model ids with the model."""

    def __init__(self, model: str) -> None:
        self._model = model

    def of(self, route: str, kind: str) -> str:
        """Returns the id for a path: only models have one."""
        return self._model

    def substitute(self, asked: dict[str, Any], route: str, *, strict: bool) -> None:
        """Inserts the model and the limit."""
        for name in ("model", "after_id", "before_id"):
            if name in asked:
                asked[name] = self._model
        if "max_tokens" in asked:
            asked["max_tokens"] = TOKENS

    def filled(self, value: Any) -> Any:
        """Returns a value of the table: no model's name is in it."""
        return value


@contextmanager
def opened() -> Iterator[Suite]:
    """The suite, against the server that the environment names."""
    yield Suite(RULES, StandIns(os.environ["ALLM_MODEL"]), BadRequestError, _named, (Omit,))


def _named(error: BadRequestError) -> str:
    """Returns the parameter that a message quotes: Anthropic's errors have no field for it."""
    quoted = _QUOTED.search(str(error.body["error"]["message"]))
    return quoted[1] if quoted else ""
