"""Conversations: lists of items that a caller keeps under an id, and that responses continue and extend."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from services.errors import InvalidRequest, ResponseNotFound, Unsupported
from services.text import limits
from services.text.responses.response import Item, new_id

PREFIX = "conv_"  # of every conversation's id, and of no response's
STATUS = "conversation"  # of its record, which lies among the responses and shares their limits and expiry
MAX_ADDED = 20  # items of one request that adds some
MAX_BYTES = 32 * 1024 * 1024  # of all items that one response may continue
OFF = "this server does not store conversations (ALLM_STORE=off)"


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation without its items."""

    id: str
    created: float  # seconds since 1970
    metadata: dict[str, str] = {}


conversation_of = msgspec.json.Decoder(Conversation).decode


class ConversationStore(Protocol):
    """The stored conversations of all clients, part of a ResponseStore. An id of another client is not found.

    A conversation expires ALLM_STORE_DAYS after items were last added to it. Every method may raise an AllmError of the
    store itself, and all but `add` raise ResponseNotFound.
    """

    async def add(self, client: str, conversation: Conversation, items: Sequence[Item]) -> None:
        """Stores a new conversation."""

    async def get(self, client: str, conversation_id: str) -> Conversation:
        """Returns a conversation."""

    async def update(self, client: str, conversation: Conversation) -> None:
        """Replaces a conversation's record; its items stay."""

    async def delete(self, client: str, conversation_id: str) -> None:
        """Deletes a conversation with its items."""

    async def items(self, client: str, conversation_id: str) -> tuple[Item, ...]:
        """Returns all items, oldest first."""

    async def extend(self, client: str, conversation_id: str, items: Sequence[Item]) -> None:
        """Adds items at the end. Raises InvalidRequest if there would be too many, or too many bytes."""

    async def remove(self, client: str, conversation_id: str, item_id: str) -> bool:
        """Deletes the first item of that id. Returns False if there is none."""


class Conversations:
    """The caller's conversations; without a store there are none."""

    def __init__(self, store: ConversationStore | None) -> None:
        self._store = store

    async def create(self, client: str, items: Sequence[Item], metadata: dict[str, str]) -> Conversation:
        """Stores a new conversation. Raises InvalidRequest for too many items, StoreUnavailable."""
        check_added(items)
        conversation = Conversation(id=new_id("conv"), created=time.time(), metadata=metadata)
        await self._kept().add(client, conversation, items)
        return conversation

    async def get(self, client: str, conversation_id: str) -> Conversation:
        """Returns a conversation. Raises ResponseNotFound."""
        return await self._kept(conversation_id).get(client, conversation_id)

    async def update(self, client: str, conversation_id: str, metadata: dict[str, str]) -> Conversation:
        """Replaces the metadata; returns the conversation. Raises ResponseNotFound."""
        found = msgspec.structs.replace(await self.get(client, conversation_id), metadata=metadata)
        await self._kept().update(client, found)
        return found

    async def delete(self, client: str, conversation_id: str) -> None:
        """Deletes a conversation. Raises ResponseNotFound."""
        await self._kept(conversation_id).delete(client, conversation_id)

    async def items(self, client: str, conversation_id: str) -> tuple[Item, ...]:
        """Returns all items, oldest first. Raises ResponseNotFound."""
        return await self._kept(conversation_id).items(client, conversation_id)

    async def item(self, client: str, conversation_id: str, item_id: str) -> Item:
        """Returns an item. Raises ResponseNotFound, also without such an item."""
        found = next((item for item in await self.items(client, conversation_id) if item.id == item_id), None)
        if found is None:
            raise no_item(item_id)
        return found

    async def extend(self, client: str, conversation_id: str, items: Sequence[Item]) -> None:
        """Adds items at the end. Raises ResponseNotFound, or InvalidRequest if the conversation would be too long."""
        await self._kept(conversation_id).extend(client, conversation_id, items)

    async def remove(self, client: str, conversation_id: str, item_id: str) -> Conversation:
        """Deletes an item; returns the conversation. Raises ResponseNotFound, also without such an item."""
        found = await self.get(client, conversation_id)
        if not await self._kept().remove(client, conversation_id, item_id):
            raise no_item(item_id)
        return found

    def _kept(self, conversation_id: str = PREFIX) -> ConversationStore:
        if self._store is None:
            raise Unsupported(f"Conversations are not supported: {OFF}", param="conversation")
        if not conversation_id.startswith(PREFIX):
            raise not_found(conversation_id)
        return self._store


def check_added(items: Sequence[object]) -> None:
    """Raises InvalidRequest for more items than one request may add."""
    if len(items) > MAX_ADDED:
        raise InvalidRequest(f"'items' has {len(items)} entries; at most {MAX_ADDED} are allowed.", param="items")


def check_length(items: int, size: int) -> None:
    """Raises InvalidRequest if a conversation would have too many items or bytes."""
    if items > limits.MAX_MESSAGES or size > MAX_BYTES:
        message = f"The conversation would be longer than {limits.MAX_MESSAGES} items or {MAX_BYTES} bytes."
        raise InvalidRequest(message, param="conversation")


def not_found(conversation_id: str) -> ResponseNotFound:
    """Returns the error for a conversation that does not exist or belongs to another client."""
    return ResponseNotFound(f"Conversation with id '{conversation_id[:80]}' not found.", param="conversation")


def no_item(item_id: str) -> ResponseNotFound:
    """Returns the error for an item that a conversation does not have."""
    return ResponseNotFound(f"Item with id '{item_id[:80]}' not found in the conversation.", param="item_id")
