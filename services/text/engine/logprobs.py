"""A queue of logprobs that wait until the text of their tokens is shown."""

from __future__ import annotations

from collections import deque

from services.text.engine.messages import TokenLogprob


class HeldLogprobs:
    """The queue of tokens' logprobs. A logprob leaves it when its token's first character is sent."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: deque[tuple[int, TokenLogprob]] = deque()

    def add(self, start: int, logprob: TokenLogprob) -> None:
        """Adds a token's logprob. `start` is the number of whole characters before the token."""
        self._held.append((start, logprob))

    def take(self, shown: int) -> list[TokenLogprob]:
        """Removes and returns the logprobs of the tokens that begin within the first `shown` characters."""
        taken = []
        while self._held and self._held[0][0] < shown:
            taken.append(self._held.popleft()[1])
        return taken
