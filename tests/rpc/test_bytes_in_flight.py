"""The shares of keys in the bytes of request bodies."""

from __future__ import annotations

import pytest

from services.errors import Overloaded, RateLimited, RequestTooLarge
from services.rpc.bytes_in_flight import BytesInFlight

ANN, BOB, EVE = "key_ann", "key_bob", "key_eve"


def test_one_key_alone_may_use_all() -> None:
    bodies = BytesInFlight(100)
    with bodies.hold(ANN, 60), bodies.hold(ANN, 40):
        assert bodies.total == 100
        with pytest.raises(Overloaded, match=r"100 of them with this key.*ALLM_BYTES_IN_FLIGHT") as refused:
            bodies.hold(ANN, 1).__enter__()
        assert refused.value.headers()["retry-after"] == "2"
    with bodies.hold(ANN, 100):
        pass


def test_a_key_below_its_share_gets_in_beside_one_that_uses_all() -> None:
    bodies = BytesInFlight(100)
    with bodies.hold(EVE, 100), bodies.hold(BOB, 50):
        with pytest.raises(Overloaded):
            bodies.hold(BOB, 1).__enter__()
        with pytest.raises(Overloaded):
            bodies.hold(EVE, 1).__enter__()
        with bodies.hold(ANN, 33):
            pass
    assert bodies.total == 0


def test_all_keys_together_have_at_most_twice_as_much() -> None:
    bodies = BytesInFlight(100)
    with bodies.hold(EVE, 100), bodies.hold(BOB, 50), bodies.hold(ANN, 33):
        with pytest.raises(Overloaded):
            bodies.hold("key_dan", 20).__enter__()
        with bodies.hold("key_dan", 17):
            assert bodies.total == 200


def test_a_key_has_a_limit_of_its_own() -> None:
    bodies = BytesInFlight()
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
    bodies = BytesInFlight(100)
    with pytest.raises(KeyError), bodies.hold(ANN, 100):
        raise KeyError
    assert bodies.total == 0
