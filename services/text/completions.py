"""The core of the legacy completions: continues a text or tokens, without conversation, template or markup."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from services.auth.caller import current_caller
from services.errors import ContextLengthExceeded
from services.models.store import StoredModel
from services.text.conversation import ParsedEvent, TextDelta
from services.text.engine.sampling import SamplingParams
from services.text.manager import TextModels
from services.text.running_answer import Choice, Completion

Prompt = str | list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """Prompts to continue, with `choices` continuations for each, in the order of the prompts."""

    model: str  # id or alias
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    choices: int = 1
    logprobs: int | None = None  # None: off; otherwise the number of top alternatives to return per token


class _AsItIs:
    """A parser for answers without markup."""

    def push(self, text: str) -> list[ParsedEvent]:
        return [TextDelta(text)]

    def finish(self, *, cut: bool = False) -> list[ParsedEvent]:
        return []


class Completions:
    """Continues texts."""

    def __init__(self, models: TextModels) -> None:
        self._models = models

    @asynccontextmanager
    async def complete(self, stored: StoredModel, request: CompletionRequest, client: str) -> AsyncIterator[Completion]:
        """Runs a completion while the block runs; leaving it early stops the model.

        Raises:
            ModelInvalid, ModelNotReady, Unsupported: the model cannot be served.
            ContextLengthExceeded: a prompt is too long; `param` is `prompt`.
            Overloaded: the queue is full, or the caller's key has exhausted its tokens per minute.
        """
        caller = current_caller()
        await caller.admit()
        async with self._models.loaded(stored) as model, AsyncExitStack() as stack:
            choices = []
            for prompt in request.prompts:
                for number in range(request.choices):
                    answer = await stack.enter_async_context(
                        model.generate(client, prompt, request.sampling.for_choice(number), logprobs=request.logprobs)
                    )
                    choices.append(Choice(answer, _AsItIs()))
            completion = Completion(stored.id, choices, prefix="cmpl", prompts=len(request.prompts))
            stack.callback(lambda: caller.spend(completion.computed))
            stack.push_async_callback(completion.close)
            try:
                yield completion
            except ContextLengthExceeded as error:
                raise ContextLengthExceeded(error.message, param="prompt") from error
