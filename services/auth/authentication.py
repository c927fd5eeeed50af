"""Authentication of calls: with ALLM_AUTH=keys every caller must send a signed identity, wherever it comes from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from services.auth.caller import Caller
from services.auth.identity import ANONYMOUS, HEADER, verify
from services.auth.secret_file import read_secret
from services.auth.token_file import TokenFile
from services.auth.token_rates import TokenLedger, TokenRates
from services.errors import Unauthenticated
from services.settings.settings import Settings

RATES_NAME = "token-rates.db"
# The gateway retries on another replica what a stopping one has not finished, with the identity signed at first. So an
# identity is accepted beyond its minute for as long as a request may have run before (ALLM_REQUEST_SECONDS).
RETRY_SECONDS = 900.0


class Authenticator:
    """The authentication of calls, once per call. Without a secret everybody is admitted with all scopes."""

    def __init__(
        self, secret: bytes | None = None, rates: TokenRates | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """`rates`: counts the tokens of callers that have a rate limit. `clock`: seconds since the epoch."""
        self._secret = secret
        self._rates = rates
        self._clock = clock

    @classmethod
    def of(cls, settings: Settings) -> Authenticator:
        """Creates a service's authenticator. Raises SecretUnusable if keys are required and there is no secret."""
        if not settings.auth.keys:
            return cls()

        async def ledger() -> TokenLedger:
            return await _ledger(settings)

        return cls(read_secret(settings.auth.secret_file), TokenRates(ledger))

    async def close(self) -> None:
        """Shares the remaining token counts with the other replicas."""
        if self._rates:
            await self._rates.close()

    @property
    def asks(self) -> bool:
        """Whether callers must authenticate."""
        return self._secret is not None

    def look(self, metadata: Mapping[str, str | bytes]) -> Caller:
        """Returns the caller by a call's metadata. Raises Unauthenticated."""
        if self._secret is None:
            return Caller(ANONYMOUS)
        shown = metadata.get(HEADER)
        if not isinstance(shown, str):
            raise Unauthenticated(
                f"This call comes without {HEADER}, which the gateway adds for those who show a key: "
                "`Authorization: Bearer sk-allm-...`."
            )
        return Caller(verify(shown, self._secret, self._clock() - RETRY_SECONDS), self._rates)


async def _ledger(settings: Settings) -> TokenLedger:
    """Opens the ledger that all replicas share. Raises ImportError, ValueError or OSError if it cannot be used."""
    if not settings.store.redis_url:
        return await TokenFile.open(settings.home / RATES_NAME)
    from services.auth.token_redis import TokenRedis  # noqa: PLC0415 (an extra of its own)

    return TokenRedis(settings.store.redis_url)
