"""The gatekeeper's checks, the identity that it signs, and the rate of a key's requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.api import annotations_pb2

from gateway.descriptor import (
    CHAT,
    EMBEDDINGS,
    FACADES,
    IMAGES,
    KEYS,
    MACHINE,
    MODELS,
    RERANK,
    RESPONSES,
    TRANSCRIPTIONS,
)
from services.audio.api.facade import AudioFacade
from services.audio.api.servicer import TranscriptionServicer
from services.auth.identity import ADMIN, INFERENCE, SERVICE, WATCH_KEYS, WATCH_MEMORY, verify
from services.auth.key_format import MAX_CHARACTERS, PREFIX
from services.auth.token_rates import REQUESTS, TokenRates
from services.authorizer.__main__ import request_rates
from services.authorizer.gatekeeper import (
    ANY,
    Admitted,
    CheckedRequest,
    Gatekeeper,
    RateState,
    needed_scope,
    passed_scopes,
)
from services.authorizer.key_table import KeyTable
from services.catalog.api.keys_servicer import KeyServicer
from services.catalog.api.machine_servicer import MachineServicer
from services.catalog.api.models_facade import ModelsFacade
from services.catalog.api.models_servicer import ModelServicer
from services.catalog.api.ollama_facade import OllamaModelsFacade
from services.errors import AuthorizerUnavailable, Forbidden, RateLimited, Unauthenticated
from services.image.api.facade import ImagesFacade
from services.image.api.servicer import ImageServicer
from services.text.api.chat.facade import TextFacade
from services.text.api.chat.servicer import ChatServicer
from services.text.api.embeddings import EmbeddingServicer
from services.text.api.messages.facade import MessagesFacade
from services.text.api.ollama.facade import OllamaFacade
from services.text.api.rerank import RerankServicer
from services.text.api.responses.conversations_facade import ConversationsFacade
from services.text.api.responses.facade import ResponsesFacade
from services.text.api.responses.servicer import ResponseServicer
from tests import identities
from tests.authorizer.known_keys import known, shown_key, table
from tests.case import case
from tests.identities import PUBLIC
from tests.redis_server import RedisServer

NOW = 1_800_000_000.0
CHAT_PATH = "/v1/chat/completions"


class Clock:
    """A clock that only tests advance, in seconds."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def gatekeeper(keys: KeyTable, clock: Clock | None = None, rates: TokenRates | None = None) -> Gatekeeper:
    return Gatekeeper(keys, identities.KEYS["authorizer"], rates, clock or Clock(NOW))


def ask(name: str = "ann", method: str = "POST", path: str = CHAT_PATH) -> CheckedRequest:
    return CheckedRequest(method, path, f"Bearer {shown_key(name)}")


async def test_a_known_key_passes_with_a_signed_identity() -> None:
    key = known(
        "ann", models=("llama*", "m"), tokens_per_minute=500, concurrent_requests=8, bytes_in_flight=90, stored_bytes=70
    )
    admitted = await gatekeeper(table(key)).check(ask())
    assert (admitted.client, admitted.rate) == ("key_ann", None)
    identity = verify(admitted.identity, PUBLIC, NOW)
    assert (identity.subject, identity.scopes) == ("key_ann", frozenset({"inference"}))
    assert (identity.models, identity.tokens_per_minute) == (("llama*", "m"), 500)
    assert (identity.concurrent_requests, identity.bytes_in_flight, identity.stored_bytes) == (8, 90, 70)
    assert shown_key("ann") not in repr(admitted)


async def test_only_the_catalog_gets_the_rights_of_an_admin() -> None:
    """A service of models that has been taken over could use them in the caller's name, for as long as they last."""
    door = gatekeeper(table(known("ann", scopes=("admin", "inference"))))
    catalog = {service.full_name for service in (MODELS, MODELS_FACADE, OLLAMA_MODELS, MACHINE, KEYS)}
    for name, _, verb, path in WAYS:
        with case(name=name, verb=verb, path=path):
            found = verify((await door.check(ask(method=verb, path=path))).identity, PUBLIC, NOW).scopes
            assert found == ({ADMIN, INFERENCE} if name.rpartition(".")[0] in catalog else {WATCH_MEMORY, INFERENCE})
    for path in ("/allm.models.v1.ResidencyService/WatchResidency", "/allm.text.v1.NewService/Do", "/v1/new"):
        with case(path=path):
            assert verify((await door.check(ask(path=path))).identity, PUBLIC, NOW).scopes == {WATCH_MEMORY, INFERENCE}


async def test_identity_is_renewed_long_before_it_expires() -> None:
    clock = Clock(NOW)
    door = gatekeeper(table(known("ann")), clock)
    first = (await door.check(ask())).identity
    for passed in range(200):
        clock.now = NOW + passed
        text = (await door.check(ask())).identity
        assert verify(text, PUBLIC, clock.now + 30).subject == "key_ann", "it lasts for a while yet"
    assert text != first
    clock.now = NOW - 3600  # the system clock is set back
    assert verify((await door.check(ask())).identity, PUBLIC, clock.now).expires <= clock.now + 60


async def test_no_key() -> None:
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
                await gatekeeper(table(known("ann"))).check(CheckedRequest("POST", CHAT_PATH, authorization))
            assert shown_key("ann") not in raised.value.message


async def test_wrong_key_is_not_repeated_in_the_error() -> None:
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
                await gatekeeper(table(known("ann"))).check(CheckedRequest("POST", CHAT_PATH, f"Bearer {key}"))
            assert key not in raised.value.message


@pytest.mark.parametrize("authorization", ["Bearer  {}", "bearer {}", "BEARER {} ", " Bearer {}"])
async def test_header_case_does_not_matter(authorization: str) -> None:
    asked = CheckedRequest("POST", CHAT_PATH, authorization.format(shown_key("ann")))
    assert (await gatekeeper(table(known("ann"))).check(asked)).client == "key_ann"


async def test_a_key_ends_at_its_time() -> None:
    clock = Clock(NOW)
    door = gatekeeper(table(known("ann", expires=int(NOW) + 10)), clock)
    clock.now = NOW + 9.9
    assert (await door.check(ask())).client == "key_ann"
    clock.now = NOW + 10
    with pytest.raises(Unauthenticated, match="key_ann has expired"):
        await door.check(ask())


async def test_a_revoked_key_is_unknown_at_once() -> None:
    keys = table(known("ann"), known("bob"))
    door = gatekeeper(keys)
    await door.check(ask())
    keys.remove("key_ann")
    with pytest.raises(Unauthenticated, match="revoked"):
        await door.check(ask())
    assert (await door.check(ask("bob"))).client == "key_bob"


async def test_scopes() -> None:
    for scopes, method, path, passes in [
        (("inference",), "POST", CHAT_PATH, True),
        (("inference",), "GET", "/v1/models", True),
        (("inference",), "POST", "/v1/models", False),
        (("inference",), "GET", "/v1/api_keys", False),
        (("admin",), "POST", "/v1/models", True),
        (("admin",), "GET", "/v1/models", True),
        (("admin",), "POST", CHAT_PATH, False),
        (("admin", "inference"), "POST", CHAT_PATH, True),
    ]:
        with case(scopes=scopes, method=method, path=path, passes=passes):
            door = gatekeeper(table(known("ann", scopes=scopes)))
            if passes:
                assert isinstance(await door.check(ask("ann", method, path)), Admitted)
            else:
                with pytest.raises(Forbidden, match="key_ann"):
                    await door.check(ask("ann", method, path))


async def test_over_the_rate() -> None:
    ticks = Clock(0.0)
    rates = TokenRates(clock=ticks, counted=REQUESTS)
    door = gatekeeper(table(known("ann", requests_per_minute=2), known("bob", requests_per_minute=2)), rates=rates)
    first, second = (await door.check(ask())).rate, (await door.check(ask())).rate
    assert first and second
    assert (first.remaining, second.remaining) == (1, 0)
    with pytest.raises(RateLimited, match="2 requests per minute: try again in 30 s") as raised:
        await door.check(ask())
    assert raised.value.headers()["retry-after"] == "30"
    assert raised.value.headers()["x-ratelimit-remaining-requests"] == "0"
    assert (await door.check(ask("bob"))).rate, "another key has a rate of its own"
    ticks.now = 30.0
    assert (await door.check(ask())).rate


async def test_otherwise_refused_calls_count_for_no_rate() -> None:
    door = gatekeeper(table(known("ann", requests_per_minute=1)))
    for _ in range(5):
        with pytest.raises(Forbidden):
            await door.check(ask("ann", "POST", "/v1/models"))
    assert (await door.check(ask())).client == "key_ann"


async def test_calls_before_the_first_key_list_are_refused_without_blaming_the_key() -> None:
    keys = KeyTable()
    door = gatekeeper(keys)
    with pytest.raises(AuthorizerUnavailable, match="catalog"):
        await door.check(ask())
    with pytest.raises(Unauthenticated):
        await door.check(CheckedRequest("POST", CHAT_PATH, ""))
    keys.retain(())
    with pytest.raises(Unauthenticated):
        await door.check(ask())


async def test_removed_keys_leave_no_state() -> None:
    keys = table()
    door = gatekeeper(keys)
    for number in range(100):
        keys.put(known(f"k{number}", requests_per_minute=9))
        await door.check(ask(f"k{number}"))
        keys.remove(f"key_k{number}")
    assert (len(keys), len(door._signed), len(door._rates._accounts)) == (0, 0, 0)


MESSAGES, OLLAMA, OLLAMA_MODELS, TEXT, RESPONSES_FACADE, CONVERSATIONS, AUDIO, IMAGES_FACADE, MODELS_FACADE = FACADES
SERVICES = (
    (MESSAGES, MessagesFacade),
    (OLLAMA, OllamaFacade),
    (OLLAMA_MODELS, OllamaModelsFacade),
    (TEXT, TextFacade),
    (RESPONSES_FACADE, ResponsesFacade),
    (CONVERSATIONS, ConversationsFacade),
    (AUDIO, AudioFacade),
    (IMAGES_FACADE, ImagesFacade),
    (MODELS_FACADE, ModelsFacade),
    (CHAT, ChatServicer),
    (EMBEDDINGS, EmbeddingServicer),
    (RERANK, RerankServicer),
    (RESPONSES, ResponseServicer),
    (TRANSCRIPTIONS, TranscriptionServicer),
    (IMAGES, ImageServicer),
    (MODELS, ModelServicer),
    (MACHINE, MachineServicer),
    (KEYS, KeyServicer),
)


def methods() -> Iterator[tuple[str, str, str, str]]:
    """Yields every RPC behind the gateway: its name, its servicer's scope, and each verb and path to it."""
    for service, servicer in SERVICES:
        for method in service.methods:
            scope = getattr(servicer, method.name).scope
            yield method.full_name, scope, "POST", f"/{service.full_name}/{method.name}"
            rule = method.GetOptions().Extensions[annotations_pb2.http]
            for each in (rule, *rule.additional_bindings):
                if kind := each.WhichOneof("pattern"):
                    given = getattr(each, kind)
                    verb, path = (given.kind, given.path) if kind == "custom" else (kind, given)
                    yield method.full_name, scope, verb.upper(), path.replace("=**", "").partition("?")[0]


WAYS = sorted(set(methods()))


def test_the_gateway_asks_for_the_same_scope_as_the_service() -> None:
    """The gateway requires the admin scope for methods of allm's own processes, which do not call through it."""
    for name, scope, verb, path in WAYS:
        with case(name=name, scope=scope, verb=verb, path=path):
            assert needed_scope(verb, path) == (ADMIN if scope in (SERVICE, WATCH_KEYS) else scope)


def test_both_kinds_of_paths_are_covered() -> None:
    assert {needed_scope(verb, path) for _, _, verb, path in WAYS} == {ANY, INFERENCE, ADMIN}
    assert len(WAYS) > 60


def test_no_spelling_makes_management_look_like_anything_else() -> None:
    for path in [
        "/v1/models?x=/v1/chat/completions",
        "/v1//models",
        "//v1/models",
        "/v1/%6dodels",
        "/v1%2Fmodels",
        "/v1/models/",
        "/v1/models/org/m:load",
        "/v1/models/org%2Fm%3Aload",
        "/v1/models:x",
        "/v1/models/\n:load",
    ]:
        with case(path=path):
            assert needed_scope("POST", path) == needed_scope("DELETE", path) == needed_scope("PUT", path) == ADMIN


def test_ollamas_management_needs_the_admin_scope() -> None:
    for path in ["/api/pull", "/api/delete", "/api//pull", "/api%2Fpull", "/%61pi/delete?x=/api/tags"]:
        with case(path=path):
            assert needed_scope("POST", path) == needed_scope("DELETE", path) == ADMIN
            assert passed_scopes(path, (ADMIN,)) == (ADMIN,)
    assert passed_scopes("/api/chat", (ADMIN,)) == passed_scopes("/api/pull/", (ADMIN,)) == (WATCH_MEMORY,)


def test_keys_are_for_operators_alone() -> None:
    for method in ["GET", "POST", "DELETE", "HEAD"]:
        for path in ["/v1/api_keys", "/v1/api_keys/key_1", "/v1/%61pi_keys", "/v1/api_keys?x"]:
            with case(method=method, path=path):
                assert needed_scope(method, path) == ADMIN


def test_unknown_own_methods_need_the_admin_scope() -> None:
    for path in [
        "/allm.new.v1.Service/Method",
        "/allm.models.v1.ModelService/NewMethod",
        "/allm.models.v1.ResidencyService/Release",
        "/allm.text.v1.NewService/Method",
        "/allm.openai.v1.ModelsService/DeleteModel",
        "/allm.models.v1.ModelService/ListModels/",
        "/allm%2Emodels.v1.ModelService/DeleteModel",
    ]:
        with case(path=path):
            assert needed_scope("POST", path) == ADMIN


def test_unknown_path_is_not_found() -> None:
    for path in ["/v1/modelsx", "/v1/assistants", "/favicon.ico", "/", "", "/v1/api_keysx"]:
        with case(path=path):
            assert needed_scope("POST", path) == INFERENCE


KEY = "key_ann"


class Ticks:
    """A clock that only tests advance, in seconds."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def waits(rates: TokenRates, per_minute: int) -> int:
    """Takes a request; returns 0 if it is admitted, otherwise the seconds to wait."""
    try:
        await rates.admit(KEY, per_minute)
    except RateLimited as refused:
        return int(refused.headers()["retry-after"])
    rates.charge(KEY, per_minute, 1)
    return 0


async def test_a_minutes_worth_may_come_at_once_and_then_at_the_rate() -> None:
    rates = TokenRates(clock=(ticks := Ticks()), counted=REQUESTS)
    assert [await waits(rates, 60) for _ in range(61)] == [0] * 60 + [1]
    ticks.now += 0.9
    assert await waits(rates, 60) == 1
    ticks.now += 0.1
    assert [await waits(rates, 60) for _ in range(2)] == [0, 1]


async def test_more_than_a_minutes_worth_is_never_saved() -> None:
    rates = TokenRates(clock=(ticks := Ticks()), counted=REQUESTS)
    await rates.admit(KEY, 3)
    ticks.now += 86_400.0
    assert [await waits(rates, 3) for _ in range(4)] == [0, 0, 0, 20]


@pytest.mark.parametrize("per_minute", [1, 7, 60, 600, 2**31 - 1])
async def test_call_after_the_given_wait_is_admitted(per_minute: int) -> None:
    rates = TokenRates(clock=(ticks := Ticks()), counted=REQUESTS)
    rates.charge(KEY, per_minute, per_minute)
    seconds = await waits(rates, per_minute)
    assert 1 <= seconds <= math.ceil(60 / per_minute)
    ticks.now += seconds
    assert await waits(rates, per_minute) == 0


def test_reported_value_is_the_fill_level() -> None:
    assert RateState.of(6, used=0.0) == RateState(limit=6, remaining=6, reset_seconds=0)
    assert RateState.of(6, used=2.0) == RateState(limit=6, remaining=4, reset_seconds=20)
    assert RateState.of(6, used=1.5) == RateState(limit=6, remaining=4, reset_seconds=15)
    assert RateState.of(6, used=1.5).headers() == {
        "x-ratelimit-limit-requests": "6",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "15s",
    }


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path)
    yield running
    running.kill()


@pytest.mark.slow
async def test_two_authorizers_on_one_redis_count_together(redis: RedisServer) -> None:
    """Each counts the requests that the other has admitted. Without Redis, each counts its own."""
    one, other = (request_rates(redis.url) for _ in range(2))
    keys = table(known("ann", requests_per_minute=3))
    first, second = (Gatekeeper(keys, identities.KEYS["authorizer"], rates) for rates in (one, other))
    try:
        for _ in range(3):
            await check(first, "ann")
        async with asyncio.timeout(60):
            while one._accounts[KEY].unreported:  # noqa: ASYNC110 - it shares its counts beside requests
                await asyncio.sleep(0.02)
        with pytest.raises(RateLimited, match="3 requests per minute"):
            await check(second, "ann")
        redis.kill()
        async with asyncio.timeout(60):
            while not other._failed:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        with pytest.raises(RateLimited):
            await check(second, "ann")
    finally:
        await asyncio.gather(one.close(), other.close())


async def check(gatekeeper: Gatekeeper, name: str) -> None:
    await gatekeeper.check(CheckedRequest("POST", "/v1/chat/completions", f"Bearer {shown_key(name)}"))
