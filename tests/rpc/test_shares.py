"""The shares of keys in what a process holds for its callers."""

from __future__ import annotations

import pytest

from services.errors import Overloaded, RateLimited, RequestTooLarge
from services.rpc.shares import Shares

ANN, BOB, EVE = "key_ann", "key_bob", "key_eve"


def test_one_key_alone_may_use_all() -> None:
    bodies = Shares(100, variable="ALLM_MINE")
    with bodies.hold(ANN, 60), bodies.hold(ANN, 40):
        assert bodies.total == 100
        words = r"use 100 of 100 bytes \(ALLM_MINE\), 100 of them with this key"
        with pytest.raises(Overloaded, match=words) as refused:
            bodies.hold(ANN, 1).__enter__()
        assert refused.value.headers()["retry-after"] == "2"
    with bodies.hold(ANN, 100):
        pass


def test_a_key_below_its_share_is_admitted_although_another_uses_all() -> None:
    bodies = Shares(100)
    with bodies.hold(EVE, 100), bodies.hold(BOB, 50):
        with pytest.raises(Overloaded):
            bodies.hold(BOB, 1).__enter__()
        with pytest.raises(Overloaded):
            bodies.hold(EVE, 1).__enter__()
        with bodies.hold(ANN, 33):
            pass
    assert bodies.total == 0


def test_all_keys_together_have_at_most_twice_as_much() -> None:
    bodies = Shares(100)
    with bodies.hold(EVE, 100), bodies.hold(BOB, 50), bodies.hold(ANN, 33):
        with pytest.raises(Overloaded):
            bodies.hold("key_dan", 20).__enter__()
        with bodies.hold("key_dan", 17):
            assert bodies.total == 200


def test_a_key_has_a_limit_of_its_own() -> None:
    bodies = Shares()
    with bodies.hold(ANN, 7, limit=10):
        with pytest.raises(RateLimited, match="its limit is 10") as refused:
            bodies.hold(ANN, 4, limit=10).__enter__()
        assert refused.value.headers()["retry-after"] == "2"
        with bodies.hold(ANN, 3, limit=10), bodies.hold(BOB, 1000):
            pass
    with pytest.raises(RequestTooLarge, match="11 bytes"):
        bodies.hold(ANN, 11, limit=10).__enter__()
    with bodies.hold(ANN, 10, limit=10):
        pass


def test_the_bytes_are_free_after_an_error() -> None:
    bodies = Shares(100)
    with pytest.raises(KeyError), bodies.hold(ANN, 100):
        raise KeyError
    assert bodies.total == 0


def test_a_request_takes_its_share_in_pieces() -> None:
    bodies = Shares(100)
    with bodies.open(ANN, limit=80) as one, bodies.open(BOB) as other:
        one.take(60)
        other.take(40)
        with pytest.raises(Overloaded):
            one.take(1)
        other.take(10)  # below its share
        assert (one.taken, other.taken, bodies.total) == (60, 50, 110)
        with pytest.raises(RequestTooLarge):
            one.take(21)
    assert bodies.total == 0
