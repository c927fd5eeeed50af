"""The core of the Responses API, which both wire formats call: generates responses and stores them for the client."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from services.auth.caller import current_caller
from services.errors import (
    AllmError,
    ContextLengthExceeded,
    Internal,
    InvalidRequest,
    StoreUnavailable,
    Unsupported,
)
from services.text import limits
from services.text.chat import Chat, check_sight
from services.text.conversation import AnswerEvent, ChatRequest
from services.text.manager import TextModels
from services.text.responses.background import Background
from services.text.responses.conversations import MAX_BYTES, PREFIX, Conversations
from services.text.responses.item_messages import messages_of, shortened
from services.text.responses.response import (
    Event,
    FunctionOutputItem,
    Item,
    ItemReference,
    Progress,
    Response,
    ResponseRequest,
    new_id,
)
from services.text.responses.run import Run
from services.text.responses.store import ResponseStore, gap, not_found
from services.text.running_answer import Completion

log = logging.getLogger(__name__)

SWEEP_SECONDS = 3600.0
FOLLOW_SECONDS = 0.1  # between two polls for new events of a background response
FOLLOWED_AT_ONCE = 256  # events
OFF = "this server does not store responses (ALLM_STORE=off)"

FirstEvents = Sequence[tuple[int, AnswerEvent]]


class Responses:
    """Generates responses with the chat core; without a store it keeps none. The caller must close it."""

    def __init__(self, models: TextModels, chat: Chat, store: ResponseStore | None) -> None:
        self._models = models
        self._chat = chat
        self._store = store
        self.conversations = Conversations(store.conversations if store else None)
        self._background = Background(store) if store else None
        self._sweeping = asyncio.create_task(self._sweep(store)) if store else None

    async def close(self) -> None:
        """Stops all background responses and closes the store."""
        if self._sweeping:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        if self._background:
            await self._background.close()
        if self._store:
            await self._store.close()

    async def model_id(self, name: str) -> str:
        """Resolves an id or alias to the model id. Raises ModelNotFound."""
        return (await self._models.find(name)).id

    @asynccontextmanager
    async def run(self, request: ResponseRequest, client: str) -> AsyncIterator[Run]:
        """Generates a response while the block runs; leaving it early stops the model and stores nothing.

        Raises:
            ResponseNotFound: the previous response does not exist.
            InvalidRequest: a referenced item does not exist, or the request is invalid.
            StoreUnavailable: the request needs the store, which is unreachable.
            ModelNotFound: the model does not exist.
            Others as `Chat.complete`, and any error before the first token and within SILENT_SECONDS.
        """
        request = self._admit(request)
        store = self._store if request.settings.store else None
        extended = request.settings.conversation
        if self._store and (store or extended):
            await self._store.check(client)
        given, chat = await self._prepare(request, client)
        if store or extended:
            given = await self.lasting(given)
        async with self._answering(chat, client, shorten=request.settings.shorten) as (completion, first):
            settings = msgspec.structs.replace(request.settings, tools=chat.tools)
            response = Response(id=new_id("resp"), model=completion.model_id, created=time.time(), settings=settings)

            async def keep(ended: Response) -> None:
                if store or extended:
                    try:
                        await self._extend(client, ended, given)  # first: if it fails, the response has failed
                        if store:
                            await store.add(client, ended, given)
                    except StoreUnavailable as error:
                        # Not UNAVAILABLE: the gateway would retry, and another replica would generate it again.
                        raise Internal(error.message) from error

            yield Run(response, completion, first, keep)

    async def start(self, request: ResponseRequest, client: str) -> Response:
        """Starts a response in the background and returns it as queued. Raises as `run`, and Overloaded."""
        request = self._admit(request)
        if self._background is None:
            raise AssertionError("_admit refuses it")
        model_id = await self._models.servable_id(request.model)
        await current_caller().admit()
        await self._kept().check(client)
        given, chat = await self._prepare(request, client)
        check_sight(await self._models.find(request.model), chat)
        given = await self.lasting(given)
        settings = msgspec.structs.replace(request.settings, tools=chat.tools)
        response = Response(id=new_id("resp"), model=model_id, created=time.time(), settings=settings, status="queued")

        @asynccontextmanager
        async def running(begun: Response) -> AsyncIterator[Run]:
            async with self._answering(chat, client, shorten=request.settings.shorten) as (completion, first):

                async def keep(ended: Response) -> None:  # `Background` stores the response itself
                    await self._extend(client, ended, given)

                yield Run(begun, completion, first, keep, opening=("in_progress",))

        await self._background.start(client, response, given, running)
        return response

    async def count(self, request: ResponseRequest, client: str) -> int:
        """Counts the tokens of the prompt. Raises as `run`."""
        _, chat = await self._prepare(request, client)
        return await self._chat.count(await self._models.find(chat.model), chat, client)

    # --- stored responses

    async def check_room(self, client: str) -> None:
        """Raises InvalidRequest if the client may store nothing more."""
        if self._store:
            await self._store.check(client)

    async def get(self, response_id: str, client: str) -> Response:
        """Returns the current state of a stored response. Raises ResponseNotFound."""
        return await self._kept(response_id).get(client, response_id)

    async def delete(self, response_id: str, client: str) -> None:
        """Deletes a stored response and stops its generation. Raises ResponseNotFound."""
        await self._kept(response_id).delete(client, response_id)
        if self._background:
            self._background.stop(response_id)

    async def cancel(self, response_id: str, client: str) -> Response:
        """Cancels a background response. Raises ResponseNotFound, or InvalidRequest if it is a synchronous one."""
        response = await self._kept(response_id).cancel(client, response_id)
        if self._background and response.status == "cancelled":
            self._background.stop(response_id)
        return response

    async def input_items(
        self, response_id: str, client: str, *, newest_first: bool, after: str, limit: int
    ) -> tuple[list[Item], bool]:
        """Returns a page of a response's input items, and True if more follow.

        Raises:
            ResponseNotFound: the response does not exist.
            InvalidRequest: the limit is out of bounds, or the item `after` does not exist.
        """
        items = await self._kept(response_id).input_items(client, response_id)
        return page_of(items, newest_first=newest_first, after=after, limit=limit)

    async def follow(self, response_id: str, client: str, after: int = -1) -> AsyncIterator[list[tuple[int, Event]]]:
        """Yields the numbered events of a background response after event `after`, until the response has ended.

        Raises:
            ResponseNotFound: the response does not exist, or was deleted.
            InvalidRequest: its events are not stored.
        """
        store = self._kept(response_id)
        while True:
            response = await store.get(client, response_id)  # read before its events, so that none is missed
            if not response.settings.streamed:
                message = "Only a response that was created with 'background' and 'stream' can be streamed later."
                raise InvalidRequest(message, param="stream")
            events = await store.events(client, response_id, after, FOLLOWED_AT_ONCE)
            if events:
                after = events[-1][0]
                yield events
                if isinstance(events[-1][1], Progress) and events[-1][1].step in ("completed", "incomplete", "failed"):
                    return
            elif not response.running:
                if response.status == "failed":  # its replica died before it could store the event
                    yield [(after + 1, Progress("failed", response))]
                return
            else:
                await asyncio.sleep(FOLLOW_SECONDS)

    # --- internals

    def _kept(self, response_id: str = "") -> ResponseStore:
        if self._store is None:
            raise Unsupported(OFF)
        if response_id.startswith(PREFIX):
            raise not_found(response_id)
        return self._store

    def _admit(self, request: ResponseRequest) -> ResponseRequest:
        """Returns the request with `store` resolved. Raises Unsupported if the request needs a missing store."""
        settings = request.settings
        if self._store is None:
            wanted = {"store": settings.store, "background": settings.background}
            for name, value in wanted.items():
                if value:
                    raise Unsupported(f"'{name}' is not supported: {OFF}", param=name)
        store = self._store is not None and settings.store is not False
        if settings.background and not store:
            raise InvalidRequest("'background' needs 'store'.", param="background")
        return msgspec.structs.replace(request, settings=msgspec.structs.replace(settings, store=store))

    async def _prepare(self, request: ResponseRequest, client: str) -> tuple[tuple[Item, ...], ChatRequest]:
        """Returns the new items, and the checked request for the chat core."""
        settings = request.settings
        if len(request.input) > limits.MAX_MESSAGES:
            message = f"'input' has {len(request.input)} items; at most {limits.MAX_MESSAGES} are allowed."
            raise InvalidRequest(message, param="input")
        before: tuple[Item, ...] = ()
        if settings.conversation:
            before = await self.conversations.items(client, settings.conversation)
        elif settings.previous_response_id:
            if self._store is None:
                raise Unsupported(f"'previous_response_id' is not supported: {OFF}", param="previous_response_id")
            if settings.previous_response_id.startswith(PREFIX):
                raise gap(settings.previous_response_id, within=False)
            before = await self._store.conversation(client, settings.previous_response_id)
            if current_caller().identity.models:  # a key must not read the output of a model that it may no longer use
                self._models.check_allowed((await self._store.get(client, settings.previous_response_id)).model)
        given = await self.resolved(request.input, client)
        if not given and not before:
            raise InvalidRequest("Missing required parameter: 'input'.", param="input")
        chat = ChatRequest(
            model=request.model,
            messages=messages_of((*before, *given), settings.instructions, len(before)),
            sampling=settings.sampling,
            tools=settings.tools,
            tool_choice=settings.tool_choice,
            parallel_tool_calls=settings.parallel_tool_calls,
            output=settings.output,
            logprobs=settings.logprobs,
            reasoning_effort=settings.reasoning_effort,
            cache_key=settings.prompt_cache_key or "",
            template_variables=settings.template_variables,
        )
        limits.check(chat)
        return given, await self._chat.checked(chat)

    async def _extend(self, client: str, ended: Response, given: tuple[Item, ...]) -> None:
        """Adds the input and output of a response to its conversation, unless it failed."""
        if ended.settings.conversation and ended.status in ("completed", "incomplete"):
            await self.conversations.extend(client, ended.settings.conversation, (*given, *ended.output))

    async def resolved(self, items: Sequence[Item | ItemReference], client: str) -> tuple[Item, ...]:
        """Returns the items, with references replaced by stored items. Raises InvalidRequest for an unknown one."""
        return tuple([await self._resolved(item, client) for item in items])

    async def lasting(self, items: Sequence[Item], name: str = "input") -> tuple[Item, ...]:
        """Returns items to store: images that this server has drawn, which expire, become data URLs if they fit.

        Raises:
            InvalidRequest: one has expired; the error names it, as in `name`.
        """
        room = MAX_BYTES
        found: list[Item] = []
        for at, item in enumerate(items):
            field = "parts" if isinstance(item, FunctionOutputItem) else "content"
            parts = list(getattr(item, field, ()))
            for number, part in enumerate(parts):
                if part.image_url and not part.image_url.startswith("data:"):
                    url = await self._chat.lasting(part.image_url, f"{name}[{at}].content[{number}]")
                    if len(url) <= room:
                        parts[number] = msgspec.structs.replace(part, image_url=url)
                        room -= len(url)
            found.append(msgspec.structs.replace(item, **{field: tuple(parts)}) if parts else item)
        return tuple(found)

    async def _resolved(self, item: Item | ItemReference, client: str) -> Item:
        if not isinstance(item, ItemReference):
            return item
        found = await self._store.item(client, item.id) if self._store else None
        if found is None:
            raise InvalidRequest(f"Item with id '{item.id[:80]}' not found.", param="input")
        return found

    @asynccontextmanager
    async def _answering(
        self, chat: ChatRequest, client: str, *, shorten: bool
    ) -> AsyncIterator[tuple[Completion, FirstEvents]]:
        """Yields a completion with its first events, if they come soon. `shorten` drops oldest turns until it fits."""
        shorter = shortened(chat.messages) if shorten else iter(())
        while True:
            async with AsyncExitStack() as stack:
                try:
                    # Found anew: a response may have waited for its turn, and its model may have changed meanwhile.
                    stored = await self._models.find(chat.model)
                    completion = await stack.enter_async_context(self._chat.complete(stored, chat, client))
                    first = await completion.ready_soon()
                except ContextLengthExceeded:
                    messages = next(shorter, None)
                    if messages is None:
                        raise
                else:
                    yield completion, first
                    return
            chat = dataclasses.replace(chat, messages=messages)

    async def _sweep(self, store: ResponseStore) -> None:
        while True:
            with contextlib.suppress(AllmError):  # the next request reports the error to its caller and to the log
                swept = await store.sweep()
                log.log(logging.INFO if swept else logging.DEBUG, "stored responses deleted", extra={"count": swept})
            await asyncio.sleep(SWEEP_SECONDS)


def page_of(items: Sequence[Item], *, newest_first: bool, after: str, limit: int) -> tuple[list[Item], bool]:
    """Returns a page of items, and True if more follow.

    Raises:
        InvalidRequest: the limit is out of bounds, or the item `after` does not exist.
    """
    if not 1 <= limit <= 100:
        raise InvalidRequest(f"'limit' must be 1 to 100, not {limit}.", param="limit")
    ordered = list(reversed(items)) if newest_first else list(items)
    start = 0
    if after:
        ids = [item.id for item in ordered]
        if after not in ids:
            raise InvalidRequest(f"'after' names {after[:80]!r}, which is not among the items.", param="after")
        start = ids.index(after) + 1
    return ordered[start : start + limit], len(ordered) > start + limit
