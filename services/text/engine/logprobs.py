"""Logprobs that wait for the text of their tokens to be shown."""

from __future__ import annotations

from collections import deque

from services.text.engine.messages import TokenLogprob


class HeldLogprobs:
    """Keeps tokens' logprobs in order until the first character that a token belongs to is sent."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: deque[tuple[int, TokenLogprob]] = deque()

    def add(self, start: int, logprob: TokenLogprob) -> None:
        """Takes a token's; `start` is how many whole characters came before it."""
        self._held.append((start, logprob))

    def take(self, shown: int) -> list[TokenLogprob]:
        """Those of the tokens that belong to the first `shown` characters and were not taken yet."""
        taken = []
        while self._held and self._held[0][0] < shown:
            taken.append(self._held.popleft()[1])
        return taken
