"""Fair turns: between clients, and between the requests of a client."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from services.worker.turns import Turns


@dataclass(frozen=True)
class One:
    request: int
    client: str


def test_no_waiting_request() -> None:
    assert Turns().next([]) is None


def test_a_client_with_many_requests_gets_no_more_than_one_with_few() -> None:
    waiting = [One(number, "many") for number in range(10)] + [One(10, "few"), One(11, "one")]
    turns = Turns()
    had = [turns.next(waiting) for _ in range(60)]
    assert Counter(one.client for one in had if one) == {"many": 20, "few": 20, "one": 20}
    assert Counter(one.request for one in had if one and one.client == "many") == dict.fromkeys(range(10), 2)


def test_requests_without_a_turn_are_next_oldest_first() -> None:
    turns = Turns()
    old = [One(1, "a"), One(2, "b")]
    assert [turns.next(old), turns.next(old), turns.next(old)] == [One(1, "a"), One(2, "b"), One(1, "a")]
    assert turns.next([*old, One(4, "d"), One(3, "c")]) == One(3, "c")


def test_nothing_is_kept_of_those_who_are_gone() -> None:
    turns = Turns()
    first, second, other = One(1, "a"), One(2, "a"), One(3, "b")
    turns.next([first])
    turns.next([second])
    turns.forget(first, [second])
    assert turns.next([second, other]) == other
    turns.forget(other, [second])
    turns.forget(second, [])
    assert not turns._clients
    assert not turns._requests
