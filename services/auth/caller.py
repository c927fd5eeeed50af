"""On whose behalf things are done: an identity, and what it may still use.

Like a deadline it holds for everything that is done for a call, so it is kept in the call's context; what goes on
without the call, such as a response in the background, is done for the same caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from services.auth.identity import ANONYMOUS, Identity
from services.auth.token_rates import TokenRates
from services.errors import Forbidden, ModelNotAllowed, ModelNotFound, Unsupported


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls."""

    identity: Identity
    rates: TokenRates | None = None  # None: nobody counts

    def check_scope(self, scope: str) -> None:
        """Raises Forbidden for a caller without it; an empty one everybody has."""
        if scope and scope not in self.identity.scopes:
            raise Forbidden(f"This needs the scope '{scope}', which the key {self.identity.subject} does not have.")

    def check_model(self, asked: str, *names: str) -> None:
        """Raises ModelNotAllowed unless the caller may use a model: what it asked for, and the names that it has."""
        if not self.identity.may_use(asked, *names):
            message = f"The key {self.identity.subject} may not use the model `{asked}`."
            raise ModelNotAllowed(message, param="model")

    @contextmanager
    def looking_for(self, asked: str) -> Iterator[None]:
        """A caller with a list of models is told of no others, not even that there are none of that name.

        Raises ModelNotAllowed in place of ModelNotFound and Unsupported that are raised inside of it.
        """
        try:
            yield
        except (ModelNotFound, Unsupported):
            self.check_model(asked)
            raise

    async def admit(self) -> None:
        """Raises RateLimited for a caller that has used up its tokens of the minute. Before work begins."""
        if self.rates and self.identity.tokens_per_minute:
            await self.rates.admit(self.identity.subject, self.identity.tokens_per_minute)

    def spend(self, tokens: int) -> None:
        """Counts tokens that were computed for the caller, whether or not anybody got them. Never waits."""
        if self.rates and self.identity.tokens_per_minute and tokens > 0:
            self.rates.charge(self.identity.subject, self.identity.tokens_per_minute, tokens)


_NOBODY = Caller(ANONYMOUS)  # what is done for no call, as at the start, may use everything
_CURRENT: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller:
    """Whom this is done for."""
    return _CURRENT.get() or _NOBODY


def keep_caller(caller: Caller) -> None:
    """From here on things are done for this caller."""
    _CURRENT.set(caller)
