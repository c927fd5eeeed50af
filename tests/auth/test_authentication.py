"""ALLM_AUTH=keys on a real grpc.aio server: authentication, scopes, and the refusals."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import logging
import pkgutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.models.v1 import model_service_pb2, model_service_pb2_grpc
from allm.openai.v1 import error_pb2, text_service_pb2_grpc
from google.api import httpbody_pb2
from google.rpc import error_details_pb2, status_pb2

import services
from services.auth import authentication
from services.auth.authentication import RETRY_SECONDS, Authenticator
from services.auth.caller import current_caller
from services.auth.identity import ADMIN, HEADER, INFERENCE, SERVICE, WATCH_KEYS, Identity, own_identity
from services.auth.identity_keys import PUBLIC_NAME, KeysUnusable, PublicKeyFile, SigningKey
from services.rest.openai.sse import facade
from services.rpc import call as call_module
from services.rpc.call import Call, typed
from services.rpc.channel import OwnIdentity
from services.settings.settings import load_settings
from services.telemetry.logs import JsonFormatter
from tests.identities import KEYS, PUBLIC, ann, identity, new_key, operator, own_process, shown, write_keys

Metadata = tuple[tuple[str, str], ...]


class Servicer(model_service_pb2_grpc.ModelServiceServicer, text_service_pb2_grpc.TextServiceServicer):
    """A servicer that notes the authenticated calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.tasks: list[str] = []
        self.more = asyncio.Event()

    @typed()
    async def GetModel(self, request, call: Call):  # noqa: N802
        self.calls.append(call)
        await asyncio.create_task(self._later())
        return model_service_pb2.GetModelResponse()

    @typed(scope="")
    async def ListModels(self, request, call: Call):  # noqa: N802
        self.calls.append(call)
        return model_service_pb2.ListModelsResponse()

    @typed(scope=ADMIN, also=SERVICE)
    async def DeleteModel(self, request, call: Call):  # noqa: N802
        self.calls.append(call)
        return model_service_pb2.DeleteModelResponse()

    @typed(scope=SERVICE)
    async def WatchModels(self, request, call: Call):  # noqa: N802
        self.calls.append(call)
        await call.send(model_service_pb2.WatchModelsResponse(removed_id=call.client))
        if request.statuses:
            await self.more.wait()
            await call.send(model_service_pb2.WatchModelsResponse(removed_id="more"))

    @facade(operation="chat")
    async def CreateChatCompletion(self, request, call: Call):  # noqa: N802
        self.calls.append(call)
        await call.send(httpbody_pb2.HttpBody(data=call.client.encode()))
        if request.data:
            await self.more.wait()

    async def _later(self) -> None:
        self.tasks.append(current_caller().identity.subject)


class Door:
    """A server, its log, and client calls."""

    def __init__(self, address: str, channel: grpc.aio.Channel, servicer: Servicer, log: io.StringIO) -> None:
        self.address = address
        self.servicer = servicer
        self.models = model_service_pb2_grpc.ModelServiceStub(channel)
        self.rest = text_service_pb2_grpc.TextServiceStub(channel)
        self.log = log

    async def get(self, metadata: Metadata = ()) -> None:
        await self.models.GetModel(model_service_pb2.GetModelRequest(), metadata=metadata, timeout=30)

    async def delete(self, metadata: Metadata = ()) -> None:
        await self.models.DeleteModel(model_service_pb2.DeleteModelRequest(), metadata=metadata, timeout=30)

    async def watch(self, metadata: Metadata = ()) -> list[str]:
        stream = self.models.WatchModels(model_service_pb2.WatchModelsRequest(), metadata=metadata, timeout=30)
        return [message.removed_id async for message in stream]

    async def chat(self, metadata: Metadata = (), data: bytes = b"") -> list[bytes]:
        stream = self.rest.CreateChatCompletion(httpbody_pb2.HttpBody(data=data), metadata=metadata, timeout=30)
        return [message.data async for message in stream]


@contextlib.asynccontextmanager
async def open_door(authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    monkeypatch.setattr(Call, "authenticator", authenticator)
    log, servicer = io.StringIO(), Servicer()
    handler = logging.StreamHandler(log)
    handler.setFormatter(JsonFormatter())
    call_module.log.addHandler(handler)
    call_module.log.setLevel(logging.INFO)
    server = grpc.aio.server()
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(servicer, server)
    text_service_pb2_grpc.add_TextServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Door(f"127.0.0.1:{port}", channel, servicer, log)
    finally:
        await server.stop(None)
        call_module.log.removeHandler(handler)


@pytest.fixture
async def door(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    async with open_door(Authenticator(PUBLIC), monkeypatch) as opened:
        yield opened


def detail(error: grpc.aio.AioRpcError) -> bytes:
    return bytes(dict(error.trailing_metadata() or ())["grpc-status-details-bin"])


def info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    (packed,) = status_pb2.Status.FromString(detail(error)).details
    found = error_details_pb2.ErrorInfo()
    assert packed.Unpack(found)
    return found


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def tampered() -> Metadata:
    """Returns an operator's rights under another identity's signature."""
    ((_, mine),), ((_, theirs),) = ann(), operator()
    return ((HEADER, theirs.rpartition(".")[0] + "." + mine.rpartition(".")[2]),)


KNOCKS: dict[str, Callable[[], Metadata]] = {
    "nothing": lambda: (),
    "only a name": lambda: (("x-client-id", "key_ann"),),
    "a key, which is the gateway's business": lambda: (("authorization", "Bearer sk-allm-abc"),),
    "empty": lambda: ((HEADER, ""),),
    "rubbish": lambda: ((HEADER, "v2.rubbish"),),
    "expired": lambda: shown(identity(lifetime=-round(RETRY_SECONDS) - 1)),
    "a key of another deployment": lambda: shown(identity("key_ann", ADMIN), new_key()),
    "a caller, by a text Pod": lambda: shown(identity("key_ann"), KEYS["text"]),
    "an admin, by a text Pod": lambda: shown(identity("key_operator", ADMIN, INFERENCE), KEYS["text"]),
    "itself as an admin, by a text Pod": lambda: shown(
        Identity("service:text/test", frozenset((ADMIN, SERVICE)), expires=2**40), KEYS["text"]
    ),
    "the operator, by a text Pod": lambda: shown(own_identity("operator", "allm-keys", 2**40), KEYS["text"]),
    "an image Pod, by a text Pod": lambda: shown(own_identity("image", "test", 2**40), KEYS["text"]),
    "a caller, by the operator": lambda: shown(identity("key_ann"), KEYS["operator"]),
    "a service, by the authorizer": lambda: shown(identity("key_ann", INFERENCE, SERVICE)),
    "tampered": tampered,
    "another version": lambda: ((HEADER, "v1" + ann()[0][1][2:]),),
    "too long": lambda: ((HEADER, ann()[0][1] + "A" * 6200),),
    "a good one behind a bad one": lambda: (*ann(), (HEADER, "v2.e30.e30.e30")),
}


@pytest.mark.parametrize("knock", KNOCKS)
async def test_others_are_refused(door: Door, knock: str) -> None:
    metadata = KNOCKS[knock]()
    error = await refusal(door.get(metadata))
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED
    assert (info(error).reason, info(error).domain) == ("UNAUTHENTICATED", "allm")
    error = await refusal(door.watch(metadata))
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED
    error = await refusal(door.chat(metadata))
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED
    assert dict(error.trailing_metadata())["x-http-status"] == "401"
    reported = error_pb2.ErrorStatus.FromString(detail(error)).error
    assert (reported.type, reported.code.string_value) == ("invalid_request_error", "invalid_api_key")
    assert door.servicer.calls == []
    for _, value in metadata:
        assert not value or value not in door.log.getvalue(), "what was shown is not for logs"


async def test_a_header_beyond_what_grpc_takes_gets_nowhere(door: Door) -> None:
    await refusal(door.get(((HEADER, "A" * 100_000),)))
    assert door.servicer.calls == []
    await door.get(ann())


async def test_a_key_has_as_many_requests_to_models_at_a_time_as_it_may(door: Door) -> None:
    two = shown(replace(identity("key_ann"), concurrent_requests=2))
    running = [asyncio.create_task(door.chat(two, b"long")) for _ in range(2)]
    while len(door.servicer.calls) < 2:  # noqa: ASYNC110 (what it looks at has no events)
        await asyncio.sleep(0)
    error = await refusal(door.chat(two))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "key_ann has 2 requests in progress" in str(error.details())
    await door.get(two)  # not to a model
    await door.chat(shown(identity("key_bob")))
    door.servicer.more.set()
    assert await asyncio.gather(*running) == [[b"key_ann"]] * 2
    assert await door.chat(two) == [b"key_ann"]
    assert not Call.running


async def test_a_key_has_as_many_bytes_in_progress_as_it_may(door: Door) -> None:
    few = shown(replace(identity("key_ann"), bytes_in_flight=100))
    running = asyncio.create_task(door.chat(few, b"long"))
    while not door.servicer.calls:  # noqa: ASYNC110 (what it looks at has no events)
        await asyncio.sleep(0)
    error = await refusal(door.chat(few, b"x" * 95))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "its limit is 100" in str(error.details())
    other = asyncio.create_task(door.chat(shown(identity("key_bob")), b"x" * 95))
    error = await refusal(door.chat(few, b"x" * 101))
    assert error.code() == grpc.StatusCode.OUT_OF_RANGE
    door.servicer.more.set()
    assert (await running, await other) == ([b"key_ann"], [b"key_bob"])
    assert await door.chat(few, b"x" * 95) == [b"key_ann"]
    assert Call.bodies.total == 0


async def test_admitted_caller_is_known_only_by_its_subject(door: Door) -> None:
    await door.get((*ann(models=("tiny",), tokens=600), ("x-client-id", "key_bob")))
    (call,) = door.servicer.calls
    assert call.client == "key_ann"
    assert (call.identity.models, call.identity.tokens_per_minute) == (("tiny",), 600)
    assert door.servicer.tasks == ["key_ann"], "tasks of a call work for its caller"
    assert current_caller().identity.subject == "anonymous", "and nobody else does"
    assert await door.chat(ann()) == [b"key_ann"]
    assert json.loads(door.log.getvalue().splitlines()[-1])["client"] == "key_ann"


async def test_a_transcoded_call_is_refused_as_openai_would(door: Door) -> None:
    error = await refusal(door.get((("x-envoy-original-path", "/v1/models/tiny"),)))
    assert dict(error.trailing_metadata())["x-http-status"] == "401"


async def test_scopes(door: Door) -> None:
    error = await refusal(door.delete(ann()))
    assert error.code() == grpc.StatusCode.PERMISSION_DENIED
    assert info(error).reason == "FORBIDDEN"
    assert error.details() == "This needs the scope 'admin', which the key key_ann does not have."
    await door.delete(operator())
    await door.delete(own_process())
    assert (await refusal(door.delete(own_process("authorizer")))).code() == grpc.StatusCode.PERMISSION_DENIED
    assert (await refusal(door.watch(operator()))).code() == grpc.StatusCode.PERMISSION_DENIED
    assert await door.watch(own_process()) == ["service:text/test"]
    assert (await refusal(door.get(operator()))).code() == grpc.StatusCode.PERMISSION_DENIED, "admin is no inference"
    assert (await refusal(door.chat(operator()))).code() == grpc.StatusCode.PERMISSION_DENIED
    for anybody in (ann(), operator(), own_process(), shown(identity("key_odd", "root"))):
        await door.models.ListModels(model_service_pb2.ListModelsRequest(), metadata=anybody)
    odd = shown(identity("key_odd", "root", "Inference"))
    assert (await refusal(door.get(odd))).code() == grpc.StatusCode.PERMISSION_DENIED, "an unknown scope grants nothing"


async def test_identity_is_valid_for_a_late_retry_of_the_gateway(door: Door) -> None:
    await door.get(shown(identity(lifetime=-600)))


async def test_a_stream_outlives_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server checks the identity only at the start of a call."""
    clock = [time.time()]
    async with open_door(Authenticator(PUBLIC, clock=lambda: clock[0]), monkeypatch) as door:
        watching = model_service_pb2.WatchModelsRequest(statuses=True)
        stream = door.models.WatchModels(watching, metadata=own_process(), timeout=30)
        assert (await stream.read()).removed_id == "service:text/test"
        clock[0] += 3600
        assert (await refusal(door.get(ann()))).code() == grpc.StatusCode.UNAUTHENTICATED
        door.servicer.more.set()
        assert (await stream.read()).removed_id == "more"


async def test_without_keys_everybody_is_anonymous_and_may_do_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door(Authenticator(), monkeypatch) as door:
        await door.get()
        await door.delete()
        assert await door.watch() == ["anonymous"]
        assert await door.chat((("x-client-id", "ann"),)) == [b"ann"]
        assert await door.chat(((HEADER, "rubbish"),)) == [b"anonymous"]
        assert {call.identity.subject for call in door.servicer.calls} == {"anonymous"}


async def test_own_processes_sign_every_call_separately(door: Door) -> None:
    late = [time.time() - 3600]
    own = OwnIdentity(KEYS["text"], "text", "text-1", clock=lambda: late[0])
    async with own.channel(door.address) as channel:
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await models.DeleteModel(model_service_pb2.DeleteModelRequest(), timeout=30)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        late[0] = time.time()
        await models.DeleteModel(model_service_pb2.DeleteModelRequest(), timeout=30)
        watching = models.WatchModels(model_service_pb2.WatchModelsRequest(), timeout=30)
        assert [message.removed_id async for message in watching] == ["service:text/text-1"]
    assert [call.client for call in door.servicer.calls] == ["service:text/text-1"] * 2


async def test_our_own_commands_too(door: Door) -> None:
    own = OwnIdentity(KEYS["operator"], "operator", "command")

    def ask() -> None:
        with own.blocking_channel(door.address) as channel:
            models = model_service_pb2_grpc.ModelServiceStub(channel)
            models.DeleteModel(model_service_pb2.DeleteModelRequest(), timeout=30)

    await asyncio.to_thread(ask)
    assert [call.client for call in door.servicer.calls] == ["service:operator/command"]


async def test_a_key_is_replaced_while_calls_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in docs/keys.md: add the new public key, sign with the new private key, remove the old public key."""
    old, new, path = KEYS["text"], new_key(), tmp_path / PUBLIC_NAME
    who = own_identity("text", "test", 2**40)

    async def admits(door: Door, key: SigningKey) -> bool:
        try:
            await door.watch(shown(who, key))
        except grpc.aio.AioRpcError as error:
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            return False
        return True

    monkeypatch.setattr(authentication, "LOOK_SECONDS", 0.01)
    path.write_text(f"{old.id} text\n")
    file = PublicKeyFile(path)
    authenticator = Authenticator(file.read(), file=file)
    async with open_door(authenticator, monkeypatch) as door:
        following = asyncio.create_task(authenticator.follow())
        assert await admits(door, old) and not await admits(door, new)
        path.write_text(f"{old.id} text\n{new.id} text\n")
        while not await admits(door, new):
            assert await admits(door, old)
        assert await admits(door, old)
        path.write_text("half a li")
        assert await admits(door, new), "a file that cannot be used changes nothing"
        path.write_text(f"{new.id} text\n")
        while await admits(door, old):
            assert await admits(door, new)
        assert await admits(door, new)
        following.cancel()


def test_source_of_the_keys(tmp_path: Path) -> None:
    settings = load_settings({"ALLM_HOME": str(tmp_path), "ALLM_AUTH": "keys"})
    with pytest.raises(KeysUnusable, match="ALLM_IDENTITY_PUBLIC_KEYS_FILE"):
        Authenticator.of(settings)
    with pytest.raises(KeysUnusable, match=r"ALLM_IDENTITY_KEY_FILE=.*/identity/text\.key"):
        OwnIdentity.of(settings.auth, "text", "text-1")
    write_keys(tmp_path)
    assert Authenticator.of(settings).authenticate(dict(ann())).identity.subject == "key_ann"
    ((_, signed),) = OwnIdentity.of(settings.auth, "text", "text-1").metadata()
    assert Authenticator(PUBLIC).authenticate({HEADER: signed}).identity.scopes == {SERVICE}
    for mode in ("none", "open"):
        open_to_all = load_settings({"ALLM_HOME": str(tmp_path / "empty"), "ALLM_AUTH": mode})
        assert not Authenticator.of(open_to_all).required
        assert OwnIdentity.of(open_to_all.auth, "text", "text-1").metadata() == ()


async def test_an_unknown_scope_cannot_be_demanded() -> None:
    for wrong in ({"scope": "admn"}, {"also": "admn"}):
        with pytest.raises(ValueError, match="admn"):
            typed(**wrong)


def servicers() -> list[type]:
    """Returns every allm class that serves RPCs."""
    found = []
    for module in pkgutil.walk_packages(services.__path__, "services."):
        # Only the gateway calls the authorizer, through Envoy's API, to authenticate callers.
        if ".engine" in module.name or module.name.startswith("services.authorizer"):
            continue
        if not module.name.rsplit(".", 1)[-1].endswith(("servicer", "facade")):
            continue
        for kind in vars(importlib.import_module(module.name)).values():
            if isinstance(kind, type) and kind.__module__ == module.name and kind.__base__.__module__[:5] == "allm.":
                found.append(kind)
    return found


def test_every_rpc_says_what_scope_it_needs() -> None:
    """An undecorated method would admit everybody."""
    kinds = servicers()
    needed: dict[str, set[str]] = {}
    for kind in kinds:
        methods = [name for name in vars(kind.__base__) if name[0].isupper()]
        assert methods, kind
        for name in methods:
            method = vars(kind).get(name)
            assert method is None or "scope" in vars(method), (
                f"{kind.__name__}.{name} is not wrapped by typed or facade"
            )
            if method is not None:
                needed.setdefault(method.scope, set()).add(f"{kind.__name__}.{name}")
    assert len(kinds) >= 12
    assert needed[""] == {
        "ModelServicer.GetModel",
        "ModelServicer.ListModels",
        "ModelServicer.ExplainModel",
        "ModelsFacade.ListModels",
        "ModelsFacade.GetModel",
        "OllamaModelsFacade.GetVersion",
        "OllamaModelsFacade.ListRunning",
        "OllamaModelsFacade.ListTags",
        "OllamaModelsFacade.ShowModel",
    }
    assert needed[SERVICE] == {"ModelServicer.ReportModelStatus"}
    assert needed[WATCH_KEYS] == {"KeyServicer.WatchKeys"}
    assert {name.partition(".")[0] for name in needed[ADMIN]} == {
        "ModelServicer",
        "ModelsFacade",
        "OllamaModelsFacade",
        "KeyServicer",
        "MachineServicer",
        "ResidencyServicer",
    }
    assert not {name.partition(".")[0] for name in needed[INFERENCE]} & {"KeyServicer", "ResidencyServicer"}
