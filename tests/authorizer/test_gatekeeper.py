"""The gatekeeper's checks, and the identity that it signs."""

from __future__ import annotations

import pytest

from services.auth.identity import verify
from services.auth.key_format import MAX_CHARACTERS, PREFIX
from services.authorizer.gatekeeper import Admitted, Asked, Gatekeeper
from services.authorizer.key_table import KeyTable
from services.errors import AuthorizerUnavailable, Forbidden, RateLimited, Unauthenticated
from tests.authorizer.known_keys import SECRET, known, shown_key, table
from tests.case import case

NOW = 1_800_000_000.0
CHAT = "/v1/chat/completions"


class Clock:
    """A clock that only tests advance, in seconds."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def gatekeeper(keys: KeyTable, clock: Clock | None = None, ticks: Clock | None = None) -> Gatekeeper:
    return Gatekeeper(keys, SECRET, clock or Clock(NOW), ticks or Clock(0.0))


def ask(name: str = "ann", method: str = "POST", path: str = CHAT) -> Asked:
    return Asked(method, path, f"Bearer {shown_key(name)}")


def test_a_known_key_passes_with_a_signed_identity() -> None:
    key = known("ann", models=("llama*", "m"), tokens_per_minute=500)
    admitted = gatekeeper(table(key)).check(ask())
    assert (admitted.client, admitted.rate) == ("key_ann", None)
    identity = verify(admitted.identity, SECRET, NOW)
    assert (identity.subject, identity.scopes) == ("key_ann", frozenset({"inference"}))
    assert (identity.models, identity.tokens_per_minute) == (("llama*", "m"), 500)
    assert shown_key("ann") not in repr(admitted)


def test_an_identity_is_signed_anew_long_before_it_is_over() -> None:
    clock = Clock(NOW)
    door = gatekeeper(table(known("ann")), clock)
    first = door.check(ask()).identity
    for passed in range(200):
        clock.now = NOW + passed
        text = door.check(ask()).identity
        assert verify(text, SECRET, clock.now + 30).subject == "key_ann", "it lasts for a while yet"
    assert text != first
    clock.now = NOW - 3600  # the system clock is set back
    assert verify(door.check(ask()).identity, SECRET, clock.now).expires <= clock.now + 60


def test_no_key() -> None:
    for authorization in [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {shown_key('ann')}",
        shown_key("ann"),
        "Bearer\tx",
        f"Token {shown_key('ann')}",
    ]:
        with case(authorization=authorization):
            with pytest.raises(Unauthenticated, match="Missing API key") as raised:
                gatekeeper(table(known("ann"))).check(Asked("POST", CHAT, authorization))
            assert shown_key("ann") not in raised.value.message


def test_a_wrong_key_is_not_repeated_to_whoever_sent_it() -> None:
    for key in [
        shown_key("bob"),
        shown_key("ann")[:-1],
        shown_key("ann") + "x",
        shown_key("ann").upper(),
        f"{shown_key('ann')},Bearer {shown_key('ann')}",
        known("ann").id,
        known("ann").sha256.hex(),
        "sk-\udcff",
        PREFIX + "x" * MAX_CHARACTERS,
        "x" * 100_000,
    ]:
        with case(key=key):
            with pytest.raises(Unauthenticated, match="Incorrect API key") as raised:
                gatekeeper(table(known("ann"))).check(Asked("POST", CHAT, f"Bearer {key}"))
            assert key not in raised.value.message


@pytest.mark.parametrize("authorization", ["Bearer  {}", "bearer {}", "BEARER {} ", " Bearer {}"])
def test_how_the_header_is_written_does_not_matter(authorization: str) -> None:
    asked = Asked("POST", CHAT, authorization.format(shown_key("ann")))
    assert gatekeeper(table(known("ann"))).check(asked).client == "key_ann"


def test_a_key_ends_at_its_time() -> None:
    clock = Clock(NOW)
    door = gatekeeper(table(known("ann", expires=int(NOW) + 10)), clock)
    clock.now = NOW + 9.9
    assert door.check(ask()).client == "key_ann"
    clock.now = NOW + 10
    with pytest.raises(Unauthenticated, match="key_ann has expired"):
        door.check(ask())


def test_a_revoked_key_is_unknown_at_once() -> None:
    keys = table(known("ann"), known("bob"))
    door = gatekeeper(keys)
    door.check(ask())
    keys.remove("key_ann")
    with pytest.raises(Unauthenticated, match="revoked"):
        door.check(ask())
    assert door.check(ask("bob")).client == "key_bob"


def test_scopes() -> None:
    for scopes, method, path, passes in [
        (("inference",), "POST", CHAT, True),
        (("inference",), "GET", "/v1/models", True),
        (("inference",), "POST", "/v1/models", False),
        (("inference",), "GET", "/v1/api_keys", False),
        (("admin",), "POST", "/v1/models", True),
        (("admin",), "GET", "/v1/models", True),
        (("admin",), "POST", CHAT, False),
        (("admin", "inference"), "POST", CHAT, True),
    ]:
        with case(scopes=scopes, method=method, path=path, passes=passes):
            door = gatekeeper(table(known("ann", scopes=scopes)))
            if passes:
                assert isinstance(door.check(ask("ann", method, path)), Admitted)
            else:
                with pytest.raises(Forbidden, match="key_ann"):
                    door.check(ask("ann", method, path))


def test_over_the_rate() -> None:
    ticks = Clock(0.0)
    door = gatekeeper(table(known("ann", requests_per_minute=2), known("bob", requests_per_minute=2)), ticks=ticks)
    first, second = door.check(ask()).rate, door.check(ask()).rate
    assert first and second
    assert (first.remaining, second.remaining) == (1, 0)
    with pytest.raises(RateLimited, match="2 requests per minute: ask again in 30 seconds") as raised:
        door.check(ask())
    assert raised.value.headers()["retry-after"] == "30"
    assert raised.value.headers()["x-ratelimit-remaining-requests"] == "0"
    assert door.check(ask("bob")).rate, "another key has a rate of its own"
    ticks.now = 30.0
    assert door.check(ask()).rate


def test_what_is_refused_for_another_reason_counts_for_no_rate() -> None:
    door = gatekeeper(table(known("ann", requests_per_minute=1)))
    for _ in range(5):
        with pytest.raises(Forbidden):
            door.check(ask("ann", "POST", "/v1/models"))
    assert door.check(ask()).client == "key_ann"


def test_before_anything_is_known_nobody_gets_in_and_nobody_is_told_that_a_key_is_wrong() -> None:
    keys = KeyTable()
    door = gatekeeper(keys)
    with pytest.raises(AuthorizerUnavailable, match="catalog"):
        door.check(ask())
    with pytest.raises(Unauthenticated):
        door.check(Asked("POST", CHAT, ""))
    keys.retain(())
    with pytest.raises(Unauthenticated):
        door.check(ask())


def test_nothing_is_kept_of_keys_that_are_gone() -> None:
    keys = table()
    door = gatekeeper(keys)
    for number in range(100):
        keys.put(known(f"k{number}", requests_per_minute=9))
        door.check(ask(f"k{number}"))
        keys.remove(f"key_k{number}")
    assert (len(keys), len(door._signed), len(door._buckets)) == (0, 0, 0)
