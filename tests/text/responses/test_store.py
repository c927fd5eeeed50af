"""Stored responses in either store: owners, time to live, chains, cancellation, and replicas that share them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from services.auth.caller import Caller, keep_caller
from services.auth.identity import SCOPES, Identity
from services.errors import InvalidRequest, Overloaded, ResponseNotFound
from services.text.conversation import OutputFormat, Tool, ToolChoice, Usage
from services.text.engine.messages import TokenLogprob
from services.text.responses import store as limits
from services.text.responses.response import (
    Delta,
    FunctionCallItem,
    FunctionOutputItem,
    MessageItem,
    Part,
    ReasoningItem,
    Response,
    ResponseSettings,
)
from services.text.responses.store import DAY, MAX_BACKGROUND, STALE_SECONDS, ResponseStore
from tests.text.responses.scripted_chat import said
from tests.text.responses.store_clock import START, Clock, OpenStore


def response(response_id: str = "resp_1", status: Any = "completed", **asked: Any) -> Response:
    output = (said("out", "assistant", f"{response_id}_out"),) if status == "completed" else ()
    settings = ResponseSettings(**{"store": True, "background": status != "completed", **asked})
    return Response(id=response_id, model="m", created=START, settings=settings, status=status, output=output)


def given(text: str = "in", item_id: str = "msg_in") -> tuple[MessageItem, ...]:
    return (said(text, "user", item_id),)


async def test_a_client_with_all_its_bytes_stores_no_more_until_it_deletes_some(store: Any) -> None:
    await store.add("ann", response(), given("x" * 5000))
    store._most_bytes = 5000
    with pytest.raises(InvalidRequest, match="ALLM_STORE_BYTES") as caught:
        await store.check("ann")
    assert caught.value.param == "store"
    await store.check("ben")
    await store.delete("ann", "resp_1")
    await store.check("ann")


async def test_a_key_may_have_a_lower_limit_of_its_own(store: Any) -> None:
    await store.add("ann", response(), given("x" * 5000))
    keep_caller(Caller(Identity("ann", SCOPES, stored_bytes=60_000)))
    await store.check("ann")
    keep_caller(Caller(Identity("ann", SCOPES, stored_bytes=5000)))
    with pytest.raises(InvalidRequest, match=r"5000 are allowed \(the limit of your key\)"):
        await store.check("ann")
    keep_caller(Caller(Identity("ann", SCOPES)))
    await store.check("ann")


async def test_stored_response_is_read_back_unchanged(store: ResponseStore) -> None:
    items = (
        ReasoningItem(id="rs_1", text="hm", summary=("s",)),
        FunctionCallItem(id="fc_1", call_id="call_1", name="f", arguments="{}"),
        FunctionOutputItem(id="fco_1", call_id="call_1", output="ok"),
        MessageItem(
            id="msg_1",
            role="assistant",
            content=(Part(text="a\u0000ü", logprobs=(TokenLogprob(b"\xff", -1.0, [(b"a", -2.0)]),)),),
            status="incomplete",
        ),
    )
    asked = ResponseSettings(
        store=True,
        tools=(Tool(name="f", parameters={"type": "object", "b": 1, "a": 2}),),
        tool_choice=ToolChoice(mode="required", names=frozenset({"f"})),
        output=OutputFormat(kind="json_schema", schema={"z": 1, "a": 2}),
        metadata={"k": "v"},
    )
    usage = Usage(prompt_tokens=1, cached_tokens=2, completion_tokens=3)
    kept = msgspec.structs.replace(response(), settings=asked, output=items, usage=usage, completed=START)
    await store.add("ann", kept, items)
    assert await store.get("ann", kept.id) == kept
    assert await store.input_items("ann", kept.id) == items
    found = await store.get("ann", kept.id)
    assert list(found.settings.output.schema or {}) == ["z", "a"], "the order of keys is kept"


async def test_others_cannot_see_that_it_exists(store: ResponseStore) -> None:
    await store.add("ann", response(), given())
    everything: tuple[Callable[[str], Any], ...] = (
        lambda client: store.get(client, "resp_1"),
        lambda client: store.input_items(client, "resp_1"),
        lambda client: store.cancel(client, "resp_1"),
        lambda client: store.conversation(client, "resp_1"),
        lambda client: store.events(client, "resp_1", -1, 10),
        lambda client: store.delete(client, "resp_1"),
    )
    for act in everything:
        with pytest.raises(ResponseNotFound) as caught:
            await act("bob")
        assert caught.value.http_status == 404
    assert await store.item("bob", "msg_in") is None
    assert await store.item("ann", "msg_in") == given()[0]


async def test_deleted_response_is_gone_with_all_its_items(store: ResponseStore) -> None:
    await store.add("ann", response(), given())
    await store.delete("ann", "resp_1")
    with pytest.raises(ResponseNotFound):
        await store.get("ann", "resp_1")
    with pytest.raises(ResponseNotFound):
        await store.delete("ann", "resp_1")
    for item_id in ("msg_in", "resp_1_out"):
        assert await store.item("ann", item_id) is None


async def test_its_time_ends_to_the_second(store: ResponseStore, clock: Clock) -> None:
    await store.add("ann", response(), given())
    clock.now += 30 * DAY - 1
    assert await store.sweep() == 0
    assert (await store.get("ann", "resp_1")).id == "resp_1"
    clock.now += 1
    with pytest.raises(ResponseNotFound):
        await store.get("ann", "resp_1")
    assert await store.item("ann", "msg_in") is None
    assert await store.sweep() == 1
    assert await store.sweep() == 0


async def test_a_client_cannot_fill_the_disk(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STORED", 3)
    for number in range(5):
        kept = msgspec.structs.replace(response(f"resp_{number}"), created=START + number)
        await store.add("ann", kept, given())
    await store.add("bob", response("resp_b"), given())
    assert await store.sweep() == 2
    for number in range(2):
        with pytest.raises(ResponseNotFound):
            await store.get("ann", f"resp_{number}")
    assert (await store.get("ann", "resp_2")).id == "resp_2"
    assert (await store.get("bob", "resp_b")).id == "resp_b"


async def test_nor_with_large_ones_and_not_until_the_next_hour(
    store: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_STORED_BYTES", 4500)
    monkeypatch.setattr(limits, "SWEEP_BYTES", 6000)
    for number in range(4):
        kept = msgspec.structs.replace(response(f"resp_{number}"), created=START + number)
        await store.add("ann", kept, given("x" * 1000))
    with pytest.raises(ResponseNotFound):
        await store.get("ann", "resp_0")
    assert (await store.get("ann", "resp_3")).id == "resp_3"


# --- chains


async def chain(store: ResponseStore, length: int) -> None:
    previous = None
    for number in range(length):
        response_id = f"resp_{number}"
        await store.add("ann", response(response_id, previous_response_id=previous), given(f"in{number}"))
        previous = response_id


async def test_a_conversation_is_everything_up_to_there_oldest_first(store: ResponseStore) -> None:
    await chain(store, 4)
    items = await store.conversation("ann", "resp_2")
    assert [item.content[0].text for item in items if isinstance(item, MessageItem)] == ["in0", "out"] + [
        text for number in (1, 2) for text in (f"in{number}", "out")
    ]


async def test_a_conversation_with_a_gap_is_refused_naming_it(store: ResponseStore) -> None:
    await chain(store, 3)
    await store.delete("ann", "resp_1")
    with pytest.raises(ResponseNotFound, match=r"resp_1.*no longer exists") as caught:
        await store.conversation("ann", "resp_2")
    assert caught.value.param == "previous_response_id"


async def test_conversations_have_bounds(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await chain(store, 3)
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_CHAIN", 2)
        assert await store.conversation("ann", "resp_1")
        with pytest.raises(InvalidRequest, match="2 responses"):
            await store.conversation("ann", "resp_2")
    monkeypatch.setattr(limits, "MAX_CHAIN_BYTES", 10)
    with pytest.raises(InvalidRequest, match="10 bytes"):
        await store.conversation("ann", "resp_0")


async def test_unfinished_response_cannot_be_continued(store: ResponseStore) -> None:
    await store.add_background("ann", response(status="queued"), given(), "runner")
    with pytest.raises(InvalidRequest, match="queued") as caught:
        await store.conversation("ann", "resp_1")
    assert caught.value.param == "previous_response_id"


# --- in the background, with two replicas


async def test_another_replica_can_cancel(store: ResponseStore, other: ResponseStore) -> None:
    queued = response(status="queued")
    await store.add_background("ann", queued, given(), "runner")
    assert await store.beat("runner", ["resp_1"]) == {"resp_1"}
    assert (await other.cancel("ann", "resp_1")).status == "cancelled"
    assert await store.beat("runner", ["resp_1"]) == set()
    assert not await store.advance(msgspec.structs.replace(queued, status="completed"), [], 0)
    assert (await store.get("ann", "resp_1")).status == "cancelled"
    assert (await other.cancel("ann", "resp_1")).status == "cancelled", "twice is once"


async def test_ended_response_does_not_change(store: ResponseStore, other: ResponseStore) -> None:
    queued = response(status="queued")
    await store.add_background("ann", queued, given(), "runner")
    done = msgspec.structs.replace(queued, status="completed", output=(said("x", "assistant"),))
    assert await store.advance(done, [], 0)
    assert await other.cancel("ann", "resp_1") == done
    assert await other.get("ann", "resp_1") == done


async def test_only_background_responses_can_be_cancelled(store: ResponseStore) -> None:
    await store.add("ann", response(), given())
    with pytest.raises(InvalidRequest, match="synchronous"):
        await store.cancel("ann", "resp_1")


async def test_response_of_a_dead_replica_has_failed(store: ResponseStore, other: ResponseStore, clock: Clock) -> None:
    await store.add_background("ann", response(status="queued"), given(), "runner")
    clock.now += STALE_SECONDS
    assert (await other.get("ann", "resp_1")).status == "queued"
    await store.beat("runner", ["resp_1"])
    clock.now += STALE_SECONDS + 1
    found = await other.get("ann", "resp_1")
    assert found.status == "failed"
    assert found.failure
    assert await store.beat("runner", ["resp_1"]) == set()
    assert await store.get("ann", "resp_1") == found


async def test_a_client_has_so_many_places_in_the_background(store: ResponseStore, clock: Clock) -> None:
    for number in range(MAX_BACKGROUND):
        await store.add_background("ann", response(f"resp_{number}", "queued"), given(), "runner")
    with pytest.raises(Overloaded, match=str(MAX_BACKGROUND)):
        await store.add_background("ann", response("resp_x", "queued"), given(), "runner")
    await store.add_background("bob", response("resp_b", "queued"), given(), "runner")
    clock.now += STALE_SECONDS + 1  # the slots of a dead replica are free again
    await store.add_background("ann", response("resp_x", "queued"), given(), "runner")


async def test_events_are_kept_in_order(store: ResponseStore, other: ResponseStore) -> None:
    running = response(status="in_progress", streamed=True)
    await store.add_background("ann", running, given(), "runner")
    deltas = [Delta(0, "text", "msg", f"{number}") for number in range(7)]
    await store.advance(running, deltas[:3], 0)
    await store.advance(running, deltas[3:], 3)
    assert await other.events("ann", "resp_1", -1, 100) == list(enumerate(deltas))
    assert await other.events("ann", "resp_1", 2, 2) == [(3, deltas[3]), (4, deltas[4])]
    assert await other.events("ann", "resp_1", 6, 2) == []


async def test_response_unnamed_by_its_runner_is_orphaned(store: ResponseStore, clock: Clock) -> None:
    for number in (1, 2):
        await store.add_background("ann", response(f"resp_{number}", "queued"), given(), "runner")
    clock.now += STALE_SECONDS + 1
    assert await store.beat("runner", ["resp_2"]) == {"resp_2"}
    assert await store.beat("another", ["resp_1"]) == set(), "it is not what that one makes"
    assert (await store.get("ann", "resp_1")).status == "failed"
    assert (await store.get("ann", "resp_2")).status == "queued"


async def test_writing_twice_is_writing_once(store: ResponseStore) -> None:
    """After a broken connection, the client cannot know whether the write was done, so it repeats it."""
    running = response(status="in_progress", streamed=True)
    deltas = [Delta(0, "text", "msg", f"{number}") for number in range(4)]
    await store.add_background("ann", running, given(), "runner")
    for _ in range(2):
        assert await store.advance(running, deltas[:2], 0)
    assert await store.advance(running, deltas, 0)
    assert await store.events("ann", "resp_1", -1, 100) == list(enumerate(deltas))


async def test_the_latest_response_says_what_an_item_is(store: ResponseStore) -> None:
    for number in range(3):
        kept = msgspec.structs.replace(response(f"resp_{number}"), created=START + number)
        await store.add("ann", kept, given(f"in{number}", "msg_same"))
    assert await store.item("ann", "msg_same") == given("in2", "msg_same")[0]
    await store.delete("ann", "resp_2")
    assert await store.item("ann", "msg_same") == given("in1", "msg_same")[0]


async def test_names_that_look_like_others_are_kept_apart(store: ResponseStore) -> None:
    await store.add("a:1:b", response("resp_1"), given("in", "c"))
    await store.add("a", response("resp_2"), given("in", "1:b:c"))
    assert await store.item("a:1:b", "1:b:c") is None
    assert await store.item("a", "c") is None
    assert await store.item("a", "1:b:c")
    assert await store.item("", "c") is None


async def test_impossible_places_hold_no_memory(store: ResponseStore) -> None:
    running = response(status="in_progress", streamed=True)
    await store.add_background("ann", running, given(), "runner")
    await store.advance(running, [Delta(0, "text", "msg", "x")], 0)
    assert await store.events("ann", "resp_1", -9, 5) == [(0, Delta(0, "text", "msg", "x"))]
    assert await store.events("ann", "resp_1", 2**62, 5) == []


async def test_a_large_response_is_kept_whole(store: ResponseStore) -> None:
    items = tuple(said(f"{number}", "user", f"msg_{number}") for number in range(12_000))
    await store.add("ann", response(), items)
    assert await store.input_items("ann", "resp_1") == items
    assert len(await store.conversation("ann", "resp_1")) == 12_001
    assert await store.item("ann", "msg_11999") == items[-1]


async def test_many_replicas_may_open_and_write_at_the_same_time(open_store: OpenStore) -> None:
    stores = await asyncio.gather(*(open_store() for _ in range(6)))
    adding = [
        one.add("ann", response(f"resp_{number}_{n}"), given()) for number, one in enumerate(stores) for n in range(10)
    ]
    await asyncio.gather(*adding)
    for number in range(6):
        assert (await stores[0].get("ann", f"resp_{number}_9")).output
    await asyncio.gather(*(one.close() for one in stores))


async def test_only_one_of_many_takes_the_last_place(open_store: OpenStore) -> None:
    stores = await asyncio.gather(*(open_store() for _ in range(4)))
    tasks = [
        stores[number % 4].add_background("ann", response(f"resp_{number}", "queued"), given(), "runner")
        for number in range(MAX_BACKGROUND + 8)
    ]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [Overloaded] * 8
    await asyncio.gather(*(one.close() for one in stores))


async def test_it_ends_once_even_if_two_end_it(store: ResponseStore, other: ResponseStore) -> None:
    """The runner and a cancelling caller race: one of them wins, and both see the same result."""
    for number in range(20):
        running = response(f"resp_{number}", "in_progress")
        await store.add_background("ann", running, given(), "runner")
        done = msgspec.structs.replace(running, status="completed", output=(said("x", "assistant"),))
        kept, cancelled = await asyncio.gather(store.advance(done, [], 0), other.cancel("ann", running.id))
        final = await store.get("ann", running.id)
        assert cancelled == final
        assert final.status == ("completed" if kept else "cancelled")
        assert bool(final.output) is kept
