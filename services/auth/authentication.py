"""Who is let in: with ALLM_AUTH=keys only those who show a signed identity, wherever they come from."""

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
# What a stopping replica has not ended the gateway asks of another one, with the identity that was signed at first. So
# one is taken for as long as a request may have run before (ALLM_REQUEST_SECONDS), beyond the minute it is made for.
RETRY_SECONDS = 900.0


class Authenticator:
    """Looks at who calls, once a call. Without a secret everybody is let in, and may do everything."""

    def __init__(
        self, secret: bytes | None = None, rates: TokenRates | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """`rates`: counts the tokens of callers that have a rate. `clock`: seconds since 1970."""
        self._secret = secret
        self._rates = rates
        self._clock = clock

    @classmethod
    def of(cls, settings: Settings) -> Authenticator:
        """That of a service. Raises SecretUnusable where keys are asked for and there is no secret."""
        if not settings.auth.keys:
            return cls()

        async def ledger() -> TokenLedger:
            return await _ledger(settings)

        return cls(read_secret(settings.auth.secret_file), TokenRates(ledger))

    async def close(self) -> None:
        """Tells the other replicas the rest of what was counted."""
        if self._rates:
            await self._rates.close()

    @property
    def asks(self) -> bool:
        """Whether callers have to say who they are."""
        return self._secret is not None

    def look(self, metadata: Mapping[str, str | bytes]) -> Caller:
        """Who calls, by a call's metadata. Raises Unauthenticated."""
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
    """Where all replicas count. Raises what keeps it from being used: ImportError, ValueError, OSError."""
    if not settings.store.redis_url:
        return await TokenFile.open(settings.home / RATES_NAME)
    from services.auth.token_redis import TokenRedis  # noqa: PLC0415 (an extra of its own)

    return TokenRedis(settings.store.redis_url)
