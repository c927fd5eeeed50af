"""The responses core over a scripted model: runs, storage, continuation and background responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from services.errors import (
    AllmError,
    ContextLengthExceeded,
    Internal,
    InvalidRequest,
    ResponseNotFound,
    Timeout,
    Unsupported,
)
from services.text.conversation import Tool
from services.text.responses.response import (
    Delta,
    Event,
    FunctionCallItem,
    ItemReference,
    MessageItem,
    Progress,
    Response,
)
from services.text.responses.responses import Responses
from tests.text.responses.scripted_chat import MODEL, PROMPT_TOKENS, ScriptedChat, ScriptedModels, request, said
from tests.text.responses.store_clock import OpenStore

ANN = "ann"


@pytest.fixture
def chat() -> ScriptedChat:
    return ScriptedChat()


@pytest.fixture
async def responses(chat: ScriptedChat, open_store: OpenStore) -> AsyncIterator[Responses]:
    found = Responses(ScriptedModels(), chat, await open_store())  # type: ignore[arg-type]
    yield found
    await found.close()


@pytest.fixture
async def another(chat: ScriptedChat, open_store: OpenStore, responses: Responses) -> AsyncIterator[Responses]:
    """Responses of another replica."""
    found = Responses(ScriptedModels(), chat, await open_store())  # type: ignore[arg-type]
    yield found
    await found.close()


@pytest.fixture
def clock() -> Callable[[], float]:
    """Real time instead of the fixed clock."""
    return time.time


@pytest.fixture
async def forgetful(chat: ScriptedChat) -> AsyncIterator[Responses]:
    found = Responses(ScriptedModels(), chat, None)  # type: ignore[arg-type]
    yield found
    await found.close()


async def whole(responses: Responses, *items: Any, client: str = ANN, **asked: Any) -> Response:
    async with responses.run(request(*items, **asked), client) as run:
        return await run.whole()


async def events_of(responses: Responses, *items: Any, **asked: Any) -> list[Event]:
    async with responses.run(request(*items, **asked), ANN) as run:
        return [event async for batch in run.events() for event in batch]


async def until(condition: Callable[[], Any]) -> Any:
    """Waits until the condition holds and returns its value."""
    async with asyncio.timeout(60):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.01)


def text_of(response: Response) -> str:
    return "".join(part.text for item in response.output if isinstance(item, MessageItem) for part in item.content)


def steps(events: list[Event]) -> list[str]:
    return [event.step for event in events if isinstance(event, Progress)]


async def test_a_whole_response(responses: Responses) -> None:
    response = await whole(responses)
    assert (text_of(response), response.status, response.model) == ("Hello", "completed", MODEL)
    assert response.id.startswith("resp_")
    assert response.completed is not None
    assert response.completed >= response.created
    assert response.usage
    assert response.usage.prompt_tokens == PROMPT_TOKENS
    assert await responses.get(response.id, ANN) == response


async def test_the_events_of_a_response(responses: Responses) -> None:
    events = await events_of(responses)
    assert steps(events) == ["created", "in_progress", "completed"]
    assert isinstance(events[-1], Progress)
    assert text_of(events[-1].response) == "Hello"
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "Hello"


async def test_a_response_is_kept_before_its_end_is_sent(responses: Responses) -> None:
    async with responses.run(request(), ANN) as run:
        async for batch in run.events():
            for event in batch:
                if isinstance(event, Progress) and event.step == "completed":
                    assert await responses.get(event.response.id, ANN) == event.response


async def test_one_that_is_cut_off_is_incomplete(responses: Responses, chat: ScriptedChat) -> None:
    chat.finish = "length"
    response = await whole(responses)
    assert (response.status, response.incomplete, response.completed) == ("incomplete", "max_output_tokens", None)
    assert response.output[-1].status == "incomplete"
    assert steps(await events_of(responses)) == ["created", "in_progress", "incomplete"]


async def test_a_call_is_an_item(responses: Responses, chat: ScriptedChat) -> None:
    chat.pieces = ('<tool_call>\n{"name": "f", "argu', 'ments": {"a": 1}}\n</tool_call>')
    response = await whole(responses, tools=(Tool(name="f", parameters={"type": "object"}),))
    (item,) = response.output
    assert isinstance(item, FunctionCallItem)
    assert (item.name, item.arguments) == ("f", '{"a": 1}')


async def test_what_goes_wrong_later_is_sent_as_an_event_and_kept(responses: Responses, chat: ScriptedChat) -> None:
    chat.error = Timeout("too slow")
    events = await events_of(responses)
    assert steps(events) == ["created", "in_progress", "failed"]
    last = events[-1]
    assert isinstance(last, Progress)
    assert last.response.failure
    assert (last.response.failure.code, text_of(last.response)) == ("TIMEOUT", "Hel")
    assert await responses.get(last.response.id, ANN) == last.response
    with pytest.raises(Timeout):
        await whole(responses)


async def test_first_error_is_raised(responses: Responses, chat: ScriptedChat) -> None:
    chat.fits = 0
    with pytest.raises(ContextLengthExceeded):
        await events_of(responses)


async def test_a_store_that_fails_is_how_a_response_ends(
    responses: Responses, chat: ScriptedChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any) -> None:
        raise Internal("disk full")

    assert responses._store
    monkeypatch.setattr(responses._store, "add", full)
    assert steps(await events_of(responses)) == ["created", "in_progress", "failed"]
    with pytest.raises(Internal, match="disk full"):
        await whole(responses)


async def test_leaving_early_stops_the_model_and_keeps_nothing(responses: Responses, chat: ScriptedChat) -> None:
    chat.gate = asyncio.Event()
    async with responses.run(request(), ANN) as run:
        async for _ in run.events():
            break
    assert (chat.stopped, chat.running) == (1, 0)
    with pytest.raises(ResponseNotFound):
        await responses.get(run.response.id, ANN)


# --- conversations


async def test_a_conversation_goes_on_without_the_instructions(responses: Responses, chat: ScriptedChat) -> None:
    first = await whole(responses, "one", instructions="be brief")
    second = await whole(responses, "two", previous_response_id=first.id)
    await whole(responses, said("three"), previous_response_id=second.id, instructions="be long")
    assert [(message.role, message.content) for message in chat.asked[-1].messages] == [
        ("system", "be long"),
        ("user", "one"),
        ("assistant", "Hello"),
        ("user", "two"),
        ("assistant", "Hello"),
        ("user", "three"),
    ]


async def test_a_session_has_a_name_in_the_cache(responses: Responses, chat: ScriptedChat) -> None:
    response = await whole(responses, prompt_cache_key="session")
    assert chat.asked[-1].cache_key == "session"
    assert (await responses.get(response.id, ANN)).settings.prompt_cache_key == "session"
    await whole(responses, previous_response_id=response.id)
    assert chat.asked[-1].cache_key == "", "it is not taken over"


async def test_continuation_is_limited_to_its_client(responses: Responses) -> None:
    first = await whole(responses)
    with pytest.raises(ResponseNotFound) as caught:
        await whole(responses, previous_response_id=first.id, client="bob")
    assert caught.value.param == "previous_response_id"


async def test_an_item_can_be_named(responses: Responses, chat: ScriptedChat) -> None:
    first = await whole(responses, said("one", item_id="msg_one"))
    items = (ItemReference(id="msg_one"), ItemReference(id=first.output[0].id), said("two"))
    await whole(responses, *items)
    assert [message.content for message in chat.asked[-1].messages] == ["one", "Hello", "two"]
    with pytest.raises(InvalidRequest, match="msg_one"):
        await whole(responses, *items, client="bob")


async def test_nothing_said_is_refused(responses: Responses) -> None:
    nothing = request()
    nothing = type(nothing)(model=MODEL, input=(), settings=nothing.settings)
    with pytest.raises(InvalidRequest) as caught:
        async with responses.run(nothing, ANN):
            pass
    assert caught.value.param == "input"


async def test_a_page_of_input_items(responses: Responses) -> None:
    response = await whole(responses, *(said(f"{n}", item_id=f"msg_{n}") for n in range(5)))

    async def page(**changes: Any) -> tuple[list[str], bool]:
        asked = {"newest_first": False, "after": "", "limit": 20, **changes}
        items, has_more = await responses.input_items(response.id, ANN, **asked)
        return [item.id for item in items], has_more

    assert await page() == ([f"msg_{n}" for n in range(5)], False)
    assert await page(limit=2) == (["msg_0", "msg_1"], True)
    assert await page(limit=2, after="msg_1", newest_first=True) == (["msg_0"], False)
    assert await page(limit=2, newest_first=True) == (["msg_4", "msg_3"], True)
    assert await page(after="msg_4") == ([], False)
    for changes, param in (({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"after": "x"}, "after")):
        with pytest.raises(InvalidRequest) as caught:
            await page(**changes)
        assert caught.value.param == param


async def test_the_oldest_turns_are_left_out_only_where_that_is_wished(
    responses: Responses, chat: ScriptedChat
) -> None:
    chat.fits = 3
    turns = [said(f"{n}") for n in range(6)]
    with pytest.raises(ContextLengthExceeded):
        await whole(responses, *turns)
    response = await whole(responses, *turns, shorten=True, instructions="i")
    assert [message.content for message in chat.asked[-1].messages] == ["i", "4", "5"]
    items, _ = await responses.input_items(response.id, ANN, newest_first=False, after="", limit=20)
    assert len(items) == 6, "what was said stays"
    chat.fits = 0
    with pytest.raises(ContextLengthExceeded):
        await whole(responses, *turns, shorten=True)
    assert chat.running == 0


async def test_counting(responses: Responses, chat: ScriptedChat) -> None:
    first = await whole(responses, "one")
    assert await responses.count(request("two", previous_response_id=first.id), ANN) == PROMPT_TOKENS
    assert [message.content for message in chat.asked[-1].messages] == ["one", "Hello", "two"]


# --- without a store


async def test_not_keeping_one(responses: Responses) -> None:
    response = await whole(responses, store=False)
    assert response.settings.store is False
    with pytest.raises(ResponseNotFound):
        await responses.get(response.id, ANN)


async def test_a_server_that_keeps_nothing(forgetful: Responses) -> None:
    response = await whole(forgetful)
    assert response.settings.store is False
    for asked in ({"store": True}, {"background": True}, {"previous_response_id": "resp_1"}):
        with pytest.raises(Unsupported, match="ALLM_STORE") as caught:
            await whole(forgetful, **asked)
        assert caught.value.param == next(iter(asked))
    with pytest.raises(InvalidRequest):
        await whole(forgetful, ItemReference(id="msg_1"))
    with pytest.raises(Unsupported, match="ALLM_STORE"):
        await forgetful.get(response.id, ANN)


async def test_the_background_needs_the_store(responses: Responses) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await responses.start(request(store=False, background=True), ANN)
    assert caught.value.param == "background"


# --- in the background


async def ended(responses: Responses, response_id: str) -> Response:
    async def look() -> Response | None:
        found = await responses.get(response_id, ANN)
        return None if found.running else found

    response: Response = await until(look)
    return response


async def test_one_in_the_background(responses: Responses, another: Responses) -> None:
    queued = await responses.start(request(background=True), ANN)
    assert (queued.status, queued.output) == ("queued", ())
    response = await ended(another, queued.id)
    assert (response.status, text_of(response)) == ("completed", "Hello")
    assert response.usage
    continued = await whole(another, "more", previous_response_id=queued.id)
    assert continued.status == "completed"


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_any_replica_can_stop_it(
    responses: Responses, another: Responses, chat: ScriptedChat, here: bool, how: str
) -> None:
    chat.gate = asyncio.Event()
    queued = await responses.start(request(background=True), ANN)
    await until(lambda: chat.running)
    by = responses if here else another
    if how == "cancel":
        assert (await by.cancel(queued.id, ANN)).status == "cancelled"
    else:
        await by.delete(queued.id, ANN)
    await until(lambda: not chat.running)
    assert chat.stopped == 1
    if how == "cancel":
        assert (await another.get(queued.id, ANN)).status == "cancelled"


async def test_one_that_fails(responses: Responses, chat: ScriptedChat) -> None:
    chat.error = Timeout("too slow")
    queued = await responses.start(request(background=True), ANN)
    response = await ended(responses, queued.id)
    assert response.failure
    assert (response.status, response.failure.code) == ("failed", "TIMEOUT")


async def test_a_response_that_cannot_begin(responses: Responses, chat: ScriptedChat) -> None:
    chat.fits = 0
    queued = await responses.start(request(background=True), ANN)
    response = await ended(responses, queued.id)
    assert response.failure
    assert (response.status, response.failure.code) == ("failed", "INVALID_REQUEST")


async def test_a_service_that_stops_says_so(chat: ScriptedChat, open_store: OpenStore, responses: Responses) -> None:
    chat.gate = asyncio.Event()
    leaving = Responses(ScriptedModels(), chat, await open_store())  # type: ignore[arg-type]
    queued = await leaving.start(request(background=True), ANN)
    await until(lambda: chat.running)
    await leaving.close()
    response = await responses.get(queued.id, ANN)
    assert response.status == "failed"
    assert response.failure
    assert "stopped" in response.failure.message


async def test_a_service_that_stops_soon_after_a_response_was_ordered_stops(
    chat: ScriptedChat, open_store: OpenStore, responses: Responses
) -> None:
    chat.gate = asyncio.Event()
    for turns in range(40):  # of the event loop, until the response waits for the model
        leaving = Responses(ScriptedModels(), chat, await open_store())  # type: ignore[arg-type]
        queued = await leaving.start(request(background=True), ANN)
        for _ in range(turns):
            await asyncio.sleep(0)
        await leaving.close()
        response = await responses.get(queued.id, ANN)
        assert response.status == "failed"


async def test_it_can_be_followed_from_anywhere(responses: Responses, another: Responses, chat: ScriptedChat) -> None:
    chat.gate = asyncio.Event()
    queued = await responses.start(request(background=True, streamed=True), ANN)
    followed: list[tuple[int, Event]] = []
    async for batch in another.follow(queued.id, ANN):
        followed += batch
        if any(isinstance(event, Delta) for _, event in followed):
            chat.gate.set()
    assert [number for number, _ in followed] == list(range(len(followed)))
    assert steps([event for _, event in followed]) == ["created", "queued", "in_progress", "completed"]
    last = followed[-1][1]
    assert isinstance(last, Progress)
    assert last.response == await another.get(queued.id, ANN)
    again = [one async for batch in responses.follow(queued.id, ANN, 3) for one in batch]
    assert again == followed[4:]
    assert [batch async for batch in responses.follow(queued.id, ANN, followed[-1][0])] == []


async def test_following_ends_when_it_is_cancelled(responses: Responses, chat: ScriptedChat) -> None:
    chat.gate = asyncio.Event()
    queued = await responses.start(request(background=True, streamed=True), ANN)
    async for batch in responses.follow(queued.id, ANN):
        if any(isinstance(event, Delta) for _, event in batch):
            await responses.cancel(queued.id, ANN)
    assert (await responses.get(queued.id, ANN)).status == "cancelled"


async def test_only_streamed_background_responses_can_be_followed(responses: Responses) -> None:
    kept = await whole(responses)
    with pytest.raises(InvalidRequest) as caught:
        async for _ in responses.follow(kept.id, ANN):
            pass
    assert caught.value.param == "stream"
    with pytest.raises(AllmError):
        async for _ in responses.follow(kept.id, "bob"):
            pass
