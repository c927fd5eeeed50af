"""A running completion: one or more answers to the same request, streamed."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

from services.text.conversation import Usage
from services.text.parsers.events import AnswerEvent
from services.text.running_answer import Choice


class Completion:
    """The choices of a request, the same number for each prompt. Awaiting `ready` extends `choices[i].content`."""

    def __init__(self, model_id: str, choices: Sequence[Choice], prefix: str = "chatcmpl", prompts: int = 1) -> None:
        self.id = f"{prefix}-{secrets.token_hex(16)}"
        self.created = int(time.time())
        self.model_id = model_id
        self.choices = choices
        each = len(choices) // prompts
        self._prompts = [choices[at : at + each] for at in range(0, len(choices), each)]
        self._pending: dict[asyncio.Task[list[AnswerEvent]], int] = {}

    @property
    def finished(self) -> bool:
        """True if every choice is complete."""
        return all(choice.content.finish for choice in self.choices)

    @property
    def usage(self) -> Usage:
        """The token usage of the request. Each prompt counts once, and the tokens of every choice count."""
        usages = [choice.usage for choice in self.choices]
        return Usage(
            prompt_tokens=sum(max(choice.usage.prompt_tokens for choice in each) for each in self._prompts),
            cached_tokens=sum(min(choice.usage.cached_tokens for choice in each) for each in self._prompts),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        )

    @property
    def computed(self) -> int:
        """The number of tokens computed for the request so far. Each prompt counts once."""
        prompt_tokens = sum(max(choice.computed[0] for choice in each) for each in self._prompts)
        return prompt_tokens + sum(choice.computed[1] for choice in self.choices)

    async def ready(self) -> list[tuple[int, AnswerEvent]]:
        """Waits for events and returns them with their choice index; empty only at the end. Raises a choice's error."""
        events: list[tuple[int, AnswerEvent]] = []
        while not events and not self.finished:
            events = await self._next()
        return events

    async def whole(self) -> None:
        """Waits until every choice is complete."""
        while not self.finished:
            await self.ready()

    async def close(self) -> None:
        """Cancels pending reads."""
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)

    async def _next(self) -> list[tuple[int, AnswerEvent]]:
        if len(self.choices) == 1:  # the most frequent case, so it creates no tasks
            return [(0, event) for event in await self.choices[0].ready()]
        waited_for = set(self._pending.values())
        for index, choice in enumerate(self.choices):
            if not choice.content.finish and index not in waited_for:
                self._pending[asyncio.create_task(choice.ready())] = index
        done, _ = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
        found: list[tuple[int, AnswerEvent]] = []
        for task in sorted(done, key=lambda task: self._pending[task]):
            index = self._pending.pop(task)
            found += [(index, event) for event in task.result()]
        return found
