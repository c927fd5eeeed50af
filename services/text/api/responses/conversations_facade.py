"""The facade for /v1/conversations and the endpoints below it.

Reference: https://platform.openai.com/docs/api-reference/conversations.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from allm.openai.v1 import conversations_service_pb2, conversations_service_pb2_grpc
from google.api import httpbody_pb2

from services.rest.openai import body
from services.rest.openai.body import json_body
from services.rest.openai.sse import facade
from services.rpc.call import Call
from services.text.api.openai_sampling import check_metadata
from services.text.api.other_parameters import unknown_parameters
from services.text.api.responses.openai import is_newest_first, item_object, items_object
from services.text.api.responses.openai_items import items_of
from services.text.api.responses.openai_request import check_include
from services.text.responses.conversations import Conversation, check_added
from services.text.responses.response import Item
from services.text.responses.responses import Responses, page_of

SECONDS = 30.0  # for calls that only access the store
DEFAULT_LIMIT = 20
B = TypeVar("B", bound=msgspec.Struct)


class CreateBody(msgspec.Struct):
    """The body of POST /v1/conversations."""

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


class UpdateBody(msgspec.Struct):
    """The body of POST /v1/conversations/{id}."""

    metadata: dict[str, str] | None = None


class ItemsBody(msgspec.Struct):
    """The body of POST /v1/conversations/{id}/items."""

    items: list[dict[str, Any]]


class ConversationsFacade(conversations_service_pb2_grpc.ConversationsServiceServicer):
    """OpenAI's Conversations endpoints. Items are those of responses."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses
        self._conversations = responses.conversations

    @facade(SECONDS)
    async def CreateConversation(  # noqa: N802
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Creates a conversation."""
        given = _read(request, CreateBody, call) if request.data.strip() else CreateBody()
        check_metadata(given.metadata or {})
        items = await self._items(given.items or [], call)
        return _object(await self._conversations.create(call.client, items, given.metadata or {}))

    @facade(SECONDS)
    async def GetConversation(  # noqa: N802
        self, request: conversations_service_pb2.GetConversationRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Returns a conversation."""
        return _object(await self._conversations.get(call.client, request.conversation_id))

    @facade(SECONDS)
    async def UpdateConversation(  # noqa: N802
        self, request: conversations_service_pb2.UpdateConversationRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Replaces a conversation's metadata."""
        given = _read(request.body, UpdateBody, call)
        check_metadata(given.metadata or {})
        return _object(await self._conversations.update(call.client, request.conversation_id, given.metadata or {}))

    @facade(SECONDS)
    async def DeleteConversation(  # noqa: N802
        self, request: conversations_service_pb2.DeleteConversationRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Deletes a conversation and its items."""
        await self._conversations.delete(call.client, request.conversation_id)
        return json_body({"id": request.conversation_id, "object": "conversation.deleted", "deleted": True})

    @facade(SECONDS)
    async def CreateConversationItems(  # noqa: N802
        self, request: conversations_service_pb2.CreateConversationItemsRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Adds items at the end of a conversation."""
        check_include([*request.include, *request.include_brackets])
        items = await self._items(_read(request.body, ItemsBody, call).items, call)
        await self._conversations.extend(call.client, request.conversation_id, items)
        return json_body(items_object(items, has_more=False))

    @facade(SECONDS)
    async def ListConversationItems(  # noqa: N802
        self, request: conversations_service_pb2.ListConversationItemsRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Lists the items of a conversation."""
        check_include([*request.include, *request.include_brackets])
        newest_first = is_newest_first(request.order)
        found = await self._conversations.items(call.client, request.conversation_id)
        limit = request.limit if request.HasField("limit") else DEFAULT_LIMIT
        items, has_more = page_of(found, newest_first=newest_first, after=request.after, limit=limit)
        return json_body(items_object(items, has_more=has_more))

    @facade(SECONDS)
    async def GetConversationItem(  # noqa: N802
        self, request: conversations_service_pb2.GetConversationItemRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Returns an item."""
        check_include([*request.include, *request.include_brackets])
        return json_body(
            item_object(await self._conversations.item(call.client, request.conversation_id, request.item_id))
        )

    @facade(SECONDS)
    async def DeleteConversationItem(  # noqa: N802
        self, request: conversations_service_pb2.DeleteConversationItemRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Deletes an item; returns the conversation."""
        return _object(await self._conversations.remove(call.client, request.conversation_id, request.item_id))

    async def _items(self, given: list[dict[str, Any]], call: Call) -> tuple[Item, ...]:
        """Reads items to add. Raises InvalidRequest, also if the caller may store no more."""
        check_added(given)
        await self._responses.check_room(call.client)
        items = await self._responses.resolved(items_of(given, "items"), call.client)
        return await self._responses.lasting(items, "items")


def _read(raw: httpbody_pb2.HttpBody, kind: type[B], call: Call) -> B:
    """Decodes a body, and names its unknown parameters in the response."""
    given = body.decode(raw, kind)
    call.ignore_unknown(unknown_parameters(raw, kind))
    return given


def _object(conversation: Conversation) -> httpbody_pb2.HttpBody:
    return json_body(
        {
            "id": conversation.id,
            "object": "conversation",
            "created_at": int(conversation.created),
            "metadata": conversation.metadata,
        }
    )
