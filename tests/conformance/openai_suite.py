"""The tests of OpenAI's SDK: its clients, and what replaces the ids of the suite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from negotiation import AsyncNegotiating, Negotiating, Suite
from openai import AsyncOpenAI, BadRequestError, DefaultAioHttpClient, DefaultAsyncHttpx2Client, OpenAI
from openai_rules import RULES
from openai_stand_ins import StandIns

SETTINGS: dict[str, Any] = {"api_key": "unused", "admin_api_key": "unused", "max_retries": 0}
HTTP_LIBRARIES = {"httpx": DefaultAsyncHttpx2Client, "aiohttp": DefaultAioHttpClient}


class Client(Negotiating, OpenAI):
    """The official client."""


class AsyncClient(AsyncNegotiating, AsyncOpenAI):
    """The official asynchronous client."""


@contextmanager
def opened() -> Iterator[Suite]:
    """The suite, against the server that the environment names."""
    with OpenAI(base_url=os.environ["TEST_API_BASE_URL"], **SETTINGS) as plain:
        given = (os.environ[name] for name in ("ALLM_MODEL", "ALLM_EMBEDDER", "ALLM_SOURCE"))
        yield Suite(RULES, StandIns(plain, *given), BadRequestError, lambda error: error.param or "")
