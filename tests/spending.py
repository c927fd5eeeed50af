"""Work done for a key with a token rate, and the tokens that it used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from services.auth.caller import Caller, keep_caller
from services.auth.identity import INFERENCE, Identity
from services.auth.token_rates import TokenRates


class Purse:
    """A key with a limit of tokens per minute, counted within one process. The clock stands still."""

    def __init__(self, tokens: int) -> None:
        self._rates = TokenRates(None, lambda: 0.0)
        self._caller = Caller(Identity("key_ann", frozenset({INFERENCE}), (), tokens), self._rates)

    async def pays(self, work: Awaitable[Any]) -> Any:
        """Awaits work on behalf of this key, in a separate context."""

        async def paid() -> Any:
            keep_caller(self._caller)
            return await work

        return await asyncio.create_task(paid())

    @property
    def spent(self) -> float:
        """Returns the number of tokens counted."""
        account = self._rates._accounts.get("key_ann")
        return account.used if account else 0
