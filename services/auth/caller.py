"""The caller of a call: its identity, with checks of scopes, models and rates.

The context of the call stores the caller, because it applies to all work for the call. Work that outlives the call,
such as a response in the background, keeps the same caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from services.auth.identity import ADMIN, ANONYMOUS, Identity
from services.auth.token_rates import TokenRates
from services.errors import Forbidden, ModelNotAllowed, ModelNotFound, Unsupported

# An absolute path in a sentence, and its last name.
_PATH = re.compile(r"(?<![\w:/.~-])(?:file://)?/(?:[^\s/:'\"`,;]+/)+([^\s/:'\"`,;]+)")


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a call."""

    identity: Identity
    rates: TokenRates | None = None  # None: tokens are not counted

    def check_scope(self, scope: str, also: str = "") -> None:
        """Raises Forbidden if the caller has neither scope; everybody has an empty `scope`."""
        if scope and self.identity.scopes.isdisjoint((scope, also)):
            raise Forbidden(f"This needs the scope '{scope}', which the key {self.identity.subject} does not have.")

    def check_model(self, asked: str, *names: str) -> None:
        """Raises ModelNotAllowed unless the caller may use a model by the name `asked` or one of its `names`."""
        if not self.identity.may_use(asked, *names):
            message = f"The key {self.identity.subject} may not use the model `{asked}`."
            raise ModelNotAllowed(message, param="model")

    @contextmanager
    def looking_for(self, asked: str) -> Iterator[None]:
        """Hides the existence of other models from a caller with a list of allowed models.

        Raises ModelNotAllowed instead of a ModelNotFound or Unsupported that the block raises.
        """
        try:
            yield
        except (ModelNotFound, Unsupported):
            self.check_model(asked)
            raise

    @property
    def sees_paths(self) -> bool:
        """Returns whether the caller may see paths of this host: callers who may only use models may not."""
        return ADMIN in self.identity.scopes

    def shown(self, reason: str) -> str:
        """Returns a sentence as the caller may see it: without the scope `admin`, files are named without folders."""
        return reason if self.sees_paths else _PATH.sub(r"\1", reason)

    async def admit(self) -> None:
        """Raises RateLimited if the caller has used up its tokens of the minute. Call it before work begins."""
        if self.rates and self.identity.tokens_per_minute:
            await self.rates.admit(self.identity.subject, self.identity.tokens_per_minute)

    def spend(self, tokens: int) -> None:
        """Counts tokens that were computed for the caller, delivered or not. Never waits."""
        if self.rates and self.identity.tokens_per_minute and tokens > 0:
            self.rates.charge(self.identity.subject, self.identity.tokens_per_minute, tokens)


_NOBODY = Caller(ANONYMOUS)  # work without a call, such as at the start, may use everything
_CURRENT: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller:
    """Returns the caller of the current call."""
    return _CURRENT.get() or _NOBODY


def keep_caller(caller: Caller) -> None:
    """Sets the caller of the current context."""
    _CURRENT.set(caller)
