"""Conversations in either store, and responses that continue and extend them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.errors import InvalidRequest, ResponseNotFound, Unsupported
from services.text.conversation import Message, Picture
from services.text.responses import conversations
from services.text.responses.conversations import MAX_ADDED, Conversation, Conversations
from services.text.responses.response import MessageItem, Part, Response
from services.text.responses.responses import Responses
from services.text.responses.store import DAY, ResponseStore
from tests.text.responses.scripted_chat import ScriptedChat, ScriptedModels, request, said
from tests.text.responses.store_clock import START, Clock, OpenStore

ANN = "ann"
CONVERSATION = Conversation(id="conv_1", created=START, metadata={"a": "b"})


def items(*names: str) -> tuple[MessageItem, ...]:
    return tuple(said(name, "user", f"msg_{name}") for name in names)


async def test_items_are_kept_in_order_for_their_owner_and_every_replica(
    store: ResponseStore, other: ResponseStore
) -> None:
    kept = store.conversations
    await kept.add(ANN, CONVERSATION, items("a", "b"))
    await other.conversations.extend(ANN, "conv_1", items("c", "b"))
    await kept.extend(ANN, "conv_1", ())
    assert await kept.get(ANN, "conv_1") == CONVERSATION
    assert await kept.items(ANN, "conv_1") == items("a", "b", "c", "b")
    assert await kept.remove(ANN, "conv_1", "msg_b")
    assert not await kept.remove(ANN, "conv_1", "msg_x")
    assert await other.conversations.items(ANN, "conv_1") == items("a", "c", "b")
    assert await store.item(ANN, "msg_b") == items("b")[0], "a reference finds it"
    for calls in (kept.get, kept.items, kept.delete):
        with pytest.raises(ResponseNotFound):
            await calls("ben", "conv_1")
    with pytest.raises(ResponseNotFound):
        await kept.extend("ben", "conv_1", items("x"))
    with pytest.raises(ResponseNotFound):
        await kept.remove("ben", "conv_1", "msg_a")
    await kept.delete(ANN, "conv_1")
    assert await store.item(ANN, "msg_a") is None
    with pytest.raises(ResponseNotFound):
        await kept.items(ANN, "conv_1")


async def test_metadata_is_replaced(store: ResponseStore) -> None:
    await store.conversations.add(ANN, CONVERSATION, items("a"))
    changed = Conversation(id="conv_1", created=START, metadata={"longer": "x" * 100})
    await store.conversations.update(ANN, changed)
    assert await store.conversations.get(ANN, "conv_1") == changed
    assert await store.conversations.items(ANN, "conv_1") == items("a")


async def test_their_bytes_count_among_the_clients(store: Any) -> None:
    store._most_bytes = 5000
    kept = store.conversations
    await kept.add(ANN, CONVERSATION, items("a"))
    await store.check(ANN)
    await kept.extend(ANN, "conv_1", (said("x" * 5000, "user", "msg_x"),))
    with pytest.raises(InvalidRequest, match="ALLM_STORE_BYTES"):
        await store.check(ANN)
    await kept.remove(ANN, "conv_1", "msg_x")
    await store.check(ANN)
    await kept.update(ANN, Conversation(id="conv_1", created=START, metadata={"x": "y" * 5000}))
    with pytest.raises(InvalidRequest, match="ALLM_STORE_BYTES"):
        await store.check(ANN)
    await kept.delete(ANN, "conv_1")
    await store.check(ANN)


async def test_one_that_nothing_is_added_to_expires(store: ResponseStore, clock: Clock) -> None:
    await store.conversations.add(ANN, CONVERSATION, items("a"))
    clock.now += 20 * DAY
    await store.conversations.extend(ANN, "conv_1", items("b"))
    clock.now += 20 * DAY
    assert await store.conversations.items(ANN, "conv_1") == items("a", "b")
    clock.now += 11 * DAY
    with pytest.raises(ResponseNotFound):
        await store.conversations.items(ANN, "conv_1")
    await store.sweep()


async def test_it_has_a_largest_length(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.conversations.add(ANN, CONVERSATION, items("a"))
    large = said("x" * (conversations.MAX_BYTES // 2), "user", "msg_l")
    await store.conversations.extend(ANN, "conv_1", (large,))
    with pytest.raises(InvalidRequest, match="longer than"):
        await store.conversations.extend(ANN, "conv_1", (large,))
    assert len(await store.conversations.items(ANN, "conv_1")) == 2


# --- the core


@pytest.fixture
def chat() -> ScriptedChat:
    return ScriptedChat()


@pytest.fixture
async def responses(chat: ScriptedChat, open_store: OpenStore, clock: Clock) -> AsyncIterator[Responses]:
    clock.now = time.time()
    found = Responses(ScriptedModels(), chat, await open_store())  # type: ignore[arg-type]
    yield found
    await found.close()


async def whole(responses: Responses, text: str, **asked: Any) -> Response:
    async with responses.run(request(said(text, "user", f"msg_{text}"), **asked), ANN) as run:
        return await run.whole()


async def test_responses_continue_and_extend_a_conversation(responses: Responses, chat: ScriptedChat) -> None:
    created = await responses.conversations.create(ANN, items("a"), {})
    first = await whole(responses, "b", conversation=created.id)
    unstored = await whole(responses, "c", conversation=created.id, store=False)
    assert [message.content for message in chat.asked[-1].messages] == ["a", "b", "Hello", "c"]
    kept = await responses.conversations.items(ANN, created.id)
    assert kept == (*items("a", "b"), *first.output, *items("c"), *unstored.output)
    assert await responses.conversations.item(ANN, created.id, "msg_b") == items("b")[0]
    assert (await responses.get(first.id, ANN)).settings.conversation == created.id


async def test_pictures_of_a_conversation_reach_the_model(responses: Responses, chat: ScriptedChat) -> None:
    url = "data:image/png;base64,aGk="
    part = Part(text="", image_url=url, detail="low")
    given = (MessageItem(id="msg_a", role="user", content=(Part(text="a"), part)),)
    created = await responses.conversations.create(ANN, given, {})
    await whole(responses, "b", conversation=created.id)
    assert await responses.conversations.item(ANN, created.id, "msg_a") == given[0]
    picture = Picture(at=1, param="input.content[1]", url=url, detail="low")
    assert chat.asked[-1].messages[0] == Message(role="user", content="a", pictures=(picture,))


async def test_a_background_response_extends_it_too(responses: Responses) -> None:
    created = await responses.conversations.create(ANN, (), {})
    asked = request(said("b", "user", "msg_b"), conversation=created.id, background=True)
    started = await responses.start(asked, ANN)
    async with asyncio.timeout(60):
        while True:
            if not (await responses.get(started.id, ANN)).running:
                break
            await asyncio.sleep(0.01)
    assert len(await responses.conversations.items(ANN, created.id)) == 2


async def test_a_failed_response_adds_nothing(responses: Responses, chat: ScriptedChat) -> None:
    created = await responses.conversations.create(ANN, items("a"), {})
    chat.error = InvalidRequest("no")
    with pytest.raises(InvalidRequest):
        await whole(responses, "b", conversation=created.id)
    assert await responses.conversations.items(ANN, created.id) == items("a")


async def test_a_conversation_that_is_deleted_meanwhile_fails_its_response(
    responses: Responses, chat: ScriptedChat
) -> None:
    chat.gate = asyncio.Event()
    created = await responses.conversations.create(ANN, items("a"), {})
    async with responses.run(request(said("b", "user", "msg_b"), conversation=created.id), ANN) as run:
        await responses.conversations.delete(ANN, created.id)
        chat.gate.set()
        with pytest.raises(ResponseNotFound):
            await run.whole()
    kept = await responses.get(run.response.id, ANN)
    assert (kept.status, kept.output) == ("failed", run.response.output)


async def test_ids_of_conversations_and_of_responses_are_apart(responses: Responses) -> None:
    created = await responses.conversations.create(ANN, items("a"), {})
    response = await whole(responses, "b")
    for call in (responses.get, responses.delete, responses.cancel):
        with pytest.raises(ResponseNotFound):
            await call(created.id, ANN)
    with pytest.raises(ResponseNotFound):
        await whole(responses, "b", previous_response_id=created.id)
    with pytest.raises(ResponseNotFound):
        await responses.conversations.items(ANN, response.id)
    with pytest.raises(ResponseNotFound):
        await whole(responses, "b", conversation=response.id)
    assert await responses.conversations.items(ANN, created.id) == items("a")


async def test_what_is_absent_or_too_much_is_named(responses: Responses) -> None:
    created = await responses.conversations.create(ANN, items("a"), {"k": "v"})
    with pytest.raises(ResponseNotFound) as absent:
        await responses.conversations.item(ANN, created.id, "msg_x")
    assert absent.value.param == "item_id"
    with pytest.raises(ResponseNotFound):
        await responses.conversations.remove(ANN, created.id, "msg_x")
    with pytest.raises(InvalidRequest, match=f"at most {MAX_ADDED}"):
        await responses.conversations.create(ANN, items(*map(str, range(MAX_ADDED + 1))), {})
    assert (await responses.conversations.update(ANN, created.id, {})).metadata == {}
    assert (await responses.conversations.remove(ANN, created.id, "msg_a")).id == created.id


async def test_without_a_store_there_are_none() -> None:
    with pytest.raises(Unsupported, match="ALLM_STORE=off"):
        await Conversations(None).create(ANN, (), {})
