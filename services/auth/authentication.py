"""Authentication of calls: with ALLM_AUTH=keys every caller must send a signed identity."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

from services.auth.caller import Caller
from services.auth.identity import ANONYMOUS, HEADER, verify
from services.auth.identity_keys import PublicKeyFile, PublicKeys
from services.auth.token_ledger import TokenFile, TokenRedis
from services.auth.token_rates import TokenLedger, TokenRates
from services.errors import Unauthenticated
from services.settings.settings import Settings

RATES_NAME = "token-rates.db"
# The gateway retries an unfinished request of a stopping replica on another replica, with the identity of the first
# attempt. So a service accepts an identity beyond its minute, for as long as the first attempt may have run.
RETRY_SECONDS = 900.0
LOOK_SECONDS = 2.0  # between two looks for changed public keys


class Authenticator:
    """The authentication of calls, once per call. Without public keys everybody is admitted with all scopes."""

    def __init__(
        self,
        keys: PublicKeys | None = None,
        rates: TokenRates | None = None,
        clock: Callable[[], float] = time.time,
        file: PublicKeyFile | None = None,
    ) -> None:
        """`rates`: counts the tokens of callers that have a rate limit. `clock`: seconds since the epoch.

        `file`: has later versions of `keys`.
        """
        self._keys = keys
        self._file = file
        self._rates = rates
        self._clock = clock

    @classmethod
    def of(cls, settings: Settings) -> Authenticator:
        """Creates a service's authenticator. Raises KeysUnusable if it needs public keys and cannot read them."""
        if not settings.auth.keys:
            return cls()

        file = PublicKeyFile(settings.auth.public_keys_file)
        return cls(file.read(), TokenRates(partial(_ledger, settings)), file=file)

    async def follow(self) -> None:
        """Reads the public keys again whenever their file has changed, until it is cancelled."""
        while self._file:
            await asyncio.sleep(LOOK_SECONDS)
            self._keys = await asyncio.to_thread(self._file.news) or self._keys

    async def close(self) -> None:
        """Shares the remaining token counts with the other replicas."""
        if self._rates:
            await self._rates.close()

    @property
    def required(self) -> bool:
        """Returns whether callers must authenticate."""
        return self._keys is not None

    def authenticate(self, metadata: Mapping[str, str | bytes]) -> Caller:
        """Returns the caller of a call with this metadata. Raises Unauthenticated."""
        if self._keys is None:
            return Caller(ANONYMOUS)
        shown = metadata.get(HEADER)
        if not isinstance(shown, str):
            raise Unauthenticated(
                f"This call lacks {HEADER}, which the gateway adds to calls with an API key: "
                "`Authorization: Bearer sk-allm-...`."
            )
        return Caller(verify(shown, self._keys, self._clock() - RETRY_SECONDS), self._rates)


async def _ledger(settings: Settings) -> TokenLedger:
    """Opens the ledger that all replicas share. Raises ImportError, ValueError or OSError if it cannot be used."""
    if not settings.store.redis_url:
        return await TokenFile.open(settings.home / RATES_NAME)
    return TokenRedis(settings.store.redis_url)
