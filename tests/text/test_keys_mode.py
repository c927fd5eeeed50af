"""Catalog and two text replicas as processes with ALLM_AUTH=keys, called without a gateway.

They admit no caller without an identity, and they themselves are admitted by the catalog.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc
from allm.openai.v1 import error_pb2, responses_service_pb2, responses_service_pb2_grpc, text_service_pb2_grpc
from allm.text.v1 import (
    chat_pb2,
    chat_service_pb2,
    chat_service_pb2_grpc,
    embedding_pb2,
    embedding_service_pb2,
    embedding_service_pb2_grpc,
    response_pb2,
    response_service_pb2,
    response_service_pb2_grpc,
)
from google.api import httpbody_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.auth.identity import ADMIN, INFERENCE, SERVICE, Identity, own_identity
from services.auth.identity_keys import read_key
from tests.demo_model import demo_model
from tests.identities import identity, operator, own_process, shown, write_keys
from tests.minilm import ENCODER, write_gguf
from tests.stack import environment

MODEL, ALIAS = "smol", "gpt-4o"
PATIENCE = 90.0
POLL = 0.05
LOADED = (model_pb2.MODEL_STATE_READY, model_pb2.MODEL_STATE_LOADED)
Shown = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Replica:
    """The stubs of one text service."""

    chat: Any
    embeddings: Any
    responses: Any
    rest: Any
    rest_responses: Any
    health: Any

    @classmethod
    def on(cls, channel: grpc.Channel) -> Replica:
        return cls(
            chat_service_pb2_grpc.ChatServiceStub(channel),
            embedding_service_pb2_grpc.EmbeddingServiceStub(channel),
            response_service_pb2_grpc.ResponseServiceStub(channel),
            text_service_pb2_grpc.TextServiceStub(channel),
            responses_service_pb2_grpc.ResponsesServiceStub(channel),
            health_pb2_grpc.HealthStub(channel),
        )

    def say(self, who: Shown, model: str = MODEL, tokens: int = 4, **more: Any) -> Any:
        request = chat_service_pb2.CreateChatCompletionRequest(**chat(model, tokens), **more)
        return self.chat.CreateChatCompletion(request, metadata=who, timeout=PATIENCE)

    def post(self, who: Shown, method: str = "CreateChatCompletion", **body: Any) -> bytes:
        stub = self.rest_responses if method == "CreateResponse" else self.rest
        request = httpbody_pb2.HttpBody(content_type="application/json", data=json.dumps(body).encode())
        return b"".join(each.data for each in getattr(stub, method)(request, metadata=who, timeout=PATIENCE))

    def respond(self, who: Shown, model: str = MODEL, **settings: Any) -> response_pb2.Response:
        parameters = chat_pb2.SamplingParameters(temperature=0, max_tokens=4)
        content = [chat_pb2.ContentPart(text="Hi")]
        item = response_pb2.Item(message=response_pb2.MessageItem(role=chat_pb2.CHAT_ROLE_USER, content=content))
        wanted = response_pb2.ResponseSettings(sampling=parameters, **settings)
        request = response_service_pb2.CreateResponseRequest(model=model, input=[item], settings=wanted)
        return self.responses.CreateResponse(request, metadata=who, timeout=PATIENCE).response

    def get(self, who: Shown, response_id: str) -> response_pb2.Response:
        request = response_service_pb2.GetResponseRequest(id=response_id)
        return self.responses.GetResponse(request, metadata=who, timeout=PATIENCE).response

    def embed(self, who: Shown, model: str = ENCODER, text: str = "hello") -> Any:
        request = embedding_service_pb2.CreateEmbeddingsRequest(
            model=model, inputs=[embedding_pb2.EmbeddingInput(text=text)]
        )
        return self.embeddings.CreateEmbeddings(request, metadata=who, timeout=PATIENCE)


@dataclass(frozen=True)
class Deployment:
    """The running deployment."""

    catalog: Any
    one: Replica
    other: Replica
    logs: Path


def chat(model: str, tokens: int) -> dict[str, Any]:
    content = [chat_pb2.ContentPart(text="Say hello.")]
    return {
        "model": model,
        "messages": [chat_pb2.ChatMessage(role=chat_pb2.CHAT_ROLE_USER, content=content)],
        "sampling": chat_pb2.SamplingParameters(temperature=0, max_tokens=tokens, ignore_eos=True),
    }


@contextlib.contextmanager
def process(module: str, home: Path, name: str, folder: Path) -> Iterator[grpc.Channel]:
    """Runs one service on its own socket, as `allm serve` and a container do; yields a channel once it serves."""
    settings = {
        "ALLM_AUTH": "keys",
        "ALLM_LISTEN": f"unix:{folder}/{name}",
        "ALLM_CATALOG": f"unix:{folder}/catalog",
        "ALLM_REPLICA": name,
        "ALLM_MODEL_ROOTS": f"{demo_model().parent},{home}",
        "ALLM_DRAIN_DELAY_SECONDS": "0",
        "ALLM_THREADS": "1",
    }
    with (home / f"{name}.log").open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", module], env=environment(home, **settings), stdout=output, stderr=output
        )
    try:
        with grpc.insecure_channel(f"unix:{folder}/{name}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            until(lambda: serves(stub, running, home / f"{name}.log"))
            yield channel
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 0, (home / f"{name}.log").read_text()
    finally:
        running.kill()
        running.wait()


def serves(stub: Any, running: subprocess.Popen[bytes], log: Path) -> bool:
    assert running.poll() is None, log.read_text()
    try:
        reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)  # needs no identity
    except grpc.RpcError:
        return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(POLL)
    return found


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    home = tmp_path_factory.mktemp("keys-mode")
    write_keys(home)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keys-")))  # a socket's path must be short
        catalog = stack.enter_context(process("services.catalog", home, "catalog", folder))
        models = model_service_pb2_grpc.ModelServiceStub(catalog)
        encoder = write_gguf(home / "minilm.gguf")  # llama.cpp loads it sooner than torch would
        for model_id, path, aliases in ((MODEL, demo_model(), [ALIAS]), (ENCODER, encoder, [])):
            new = model_service_pb2.RegisterModelRequest(
                id=model_id, source=path.as_uri(), format="gguf", aliases=aliases
            )
            models.RegisterModel(new, metadata=operator(), timeout=PATIENCE)
        one = stack.enter_context(process("services.text", home, "text-1", folder))
        other = stack.enter_context(process("services.text", home, "text-2", folder))

        def ready() -> bool:
            found = models.ListModels(model_service_pb2.ListModelsRequest(), metadata=own_process()).models
            return all(model.state in LOADED and len(model.replicas) == 2 for model in found)

        until(ready)  # replicas watch the catalog and report to it: it admits their own calls
        yield Deployment(models, Replica.on(one), Replica.on(other), home)


def key(subject: str = "key_ann", **limits: Any) -> Shown:
    return shown(identity(subject, **limits))


def details(error: grpc.RpcError) -> bytes:
    return bytes(dict(error.trailing_metadata())["grpc-status-details-bin"])


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str, str]:
    """Returns status, allm's error code and the message of a failed typed call."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    info = error_details_pb2.ErrorInfo()
    (detail,) = status_pb2.Status.FromString(details(caught.value)).details
    assert detail.Unpack(info)
    return caught.value.code(), info.reason, caught.value.details()


def refused_rest(call: Callable[[], Any]) -> tuple[str, str]:
    """Returns HTTP status and OpenAI's error code of a failed REST call."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    reported = error_pb2.ErrorStatus.FromString(details(caught.value)).error
    return str(dict(caught.value.trailing_metadata())["x-http-status"]), reported.code.string_value


def test_no_call_bypasses_a_service(deployment: Deployment) -> None:
    one = deployment.one
    assert refused(lambda: one.say(()))[:2] == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
    forged = (("x-client-id", "key_ann"), ("x-allm-identity", "v2.e30.e30.e30"))
    assert refused(lambda: one.embed(forged))[0] == grpc.StatusCode.UNAUTHENTICATED
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    assert refused_rest(lambda: one.post((), **body)) == ("401", "invalid_api_key")
    assert refused(lambda: one.say(operator()))[0] == grpc.StatusCode.PERMISSION_DENIED
    unknown = model_service_pb2.ListModelsRequest()
    assert refused(lambda: deployment.catalog.ListModels(unknown))[0] == grpc.StatusCode.UNAUTHENTICATED
    report = model_service_pb2.ReportModelStatusRequest(replica="evil", modality=model_pb2.MODALITY_TEXT)
    for who in ((), key(), operator()):
        with pytest.raises(grpc.RpcError):
            deployment.catalog.ReportModelStatus(report, metadata=who)


def test_the_key_of_a_text_pod_speaks_for_text_services_only(deployment: Deployment) -> None:
    """An attacker who has taken over a text Pod has this key."""
    stolen = read_key(deployment.logs / "identity" / "text.key")
    now = int(time.time())
    unknown = model_service_pb2.DeleteModelRequest(id=MODEL)
    for forged in (
        identity("key_ann"),
        identity("key_operator", ADMIN, INFERENCE),
        Identity("service:text/text-1", frozenset((ADMIN, SERVICE)), expires=now + 60),
        own_identity("operator", "allm-keys", now + 60),
        own_identity("audio", "audio-1", now + 60),
    ):
        who = shown(forged, stolen)
        code, reason, message = refused(lambda who=who: deployment.catalog.DeleteModel(unknown, metadata=who))
        assert (code, reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
        assert "role text" in message and who[0][1] not in message
        assert refused(lambda who=who: deployment.other.say(who))[0] == grpc.StatusCode.UNAUTHENTICATED
    itself = shown(own_identity("text", "text-1", now + 60), stolen)
    assert len(deployment.catalog.ListModels(model_service_pb2.ListModelsRequest(), metadata=itself).models) == 2
    for call in (
        lambda: deployment.catalog.DeleteModel(unknown, metadata=itself),
        lambda: deployment.other.say(itself),
    ):
        assert refused(call)[0] == grpc.StatusCode.PERMISSION_DENIED


def test_with_a_key_everything_works(deployment: Deployment) -> None:
    assert deployment.one.say(key()).usage.completion_tokens == 4
    assert len(deployment.one.embed(key()).embeddings) == 1
    said = json.loads(deployment.one.post(key(), "CreateCompletion", model=MODEL, prompt="Once", max_tokens=2))
    assert said["usage"]["completion_tokens"] == 2


def test_lists_of_models_hold_everywhere(deployment: Deployment) -> None:
    """By id, by alias and by prefix, for every method that names a model."""
    for allowed in ((MODEL,), (ALIAS,), ("smo*",)):
        assert deployment.one.say(key(models=allowed), model=ALIAS, tokens=1).model == MODEL
    only, one = key(models=(ENCODER,)), deployment.one
    denied = (grpc.StatusCode.PERMISSION_DENIED, "FORBIDDEN")
    for name in (MODEL, ALIAS, "never-was"):
        code, reason, message = refused(lambda name=name: one.say(only, model=name))
        assert (code, reason) == denied
        assert message == f"The key key_ann may not use the model `{name}`."
    stream = chat_service_pb2.StreamChatCompletionRequest(**chat(ALIAS, 1))
    assert refused(lambda: list(one.chat.StreamChatCompletion(stream, metadata=only)))[:2] == denied
    assert refused(lambda: one.respond(only))[:2] == denied
    assert refused(lambda: one.respond(only, background=True))[:2] == denied
    count = response_service_pb2.CountInputTokensRequest(model=MODEL)
    assert refused(lambda: one.responses.CountInputTokens(count, metadata=only))[:2] == denied
    assert refused(lambda: one.embed(key(models=(MODEL,))))[:2] == denied
    messages = [{"role": "user", "content": "Hi"}]
    for call in (
        lambda: one.post(only, model=ALIAS, messages=messages),
        lambda: one.post(only, model=ALIAS, messages=messages, stream=True),
        lambda: one.post(only, "CreateCompletion", model=ALIAS, prompt="Hi"),
        lambda: one.post(only, "CreateResponse", model=ALIAS, input="Hi"),
        lambda: one.post(only, "CreateResponse", model=ALIAS, input="Hi", background=True),
        lambda: one.post(key(models=(MODEL,)), "CreateEmbedding", model=ENCODER, input="Hi"),
    ):
        assert refused_rest(call) == ("403", "model_not_allowed")


def test_responses_belong_to_their_key(deployment: Deployment) -> None:
    ann, bob = key("key_ann"), key("key_bob")
    made = deployment.one.respond(ann)
    assert deployment.other.get(ann, made.id).id == made.id
    assert deployment.one.respond(ann, previous_response_id=made.id).id
    posing = (*bob, ("x-client-id", "key_ann"))
    for other in (bob, posing):
        assert refused(lambda other=other: deployment.one.get(other, made.id))[0] == grpc.StatusCode.NOT_FOUND
        code, _, message = refused(lambda other=other: deployment.one.respond(other, previous_response_id=made.id))
        assert code == grpc.StatusCode.NOT_FOUND, message
        for method, request in (
            ("DeleteResponse", response_service_pb2.DeleteResponseRequest(id=made.id)),
            ("CancelResponse", response_service_pb2.CancelResponseRequest(id=made.id)),
            ("ListInputItems", response_service_pb2.ListInputItemsRequest(id=made.id)),
        ):
            call = getattr(deployment.one.responses, method)
            assert refused(lambda other=other, call=call, request=request: call(request, metadata=other))[0] == (
                grpc.StatusCode.NOT_FOUND
            )
    theirs = responses_service_pb2.GetResponseRequest(response_id=made.id)
    rest = deployment.one.rest_responses
    assert refused_rest(lambda: list(rest.GetResponse(theirs, metadata=bob))) == ("404", "response_not_found")


def test_response_of_another_model_is_not_continued(deployment: Deployment) -> None:
    """The key's list of models may have become shorter since."""
    catalog, source = deployment.catalog, demo_model().as_uri()
    new = model_service_pb2.RegisterModelRequest(id="twin", source=source, format="gguf", aliases=["o3"])
    catalog.RegisterModel(new, metadata=operator(), timeout=PATIENCE)
    wanted = model_service_pb2.GetModelRequest(id="twin")
    until(lambda: catalog.GetModel(wanted, metadata=own_process()).model.state in LOADED)
    made = until(lambda: _made(deployment, "twin"))
    for allowed in ((MODEL, "twin"), (MODEL, "o3"), ("*",)):
        assert deployment.one.respond(key(models=allowed), previous_response_id=made.id).model == MODEL
    code, reason, message = refused(lambda: deployment.one.respond(key(models=(MODEL,)), previous_response_id=made.id))
    assert (code, reason) == (grpc.StatusCode.PERMISSION_DENIED, "FORBIDDEN")
    assert "`twin`" in message
    catalog.DeleteModel(model_service_pb2.DeleteModelRequest(id="twin"), metadata=operator(), timeout=PATIENCE)


def _made(deployment: Deployment, model: str) -> Any:
    try:
        return deployment.one.respond(key(), model=model)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error
        return None


def test_tokens_per_minute(deployment: Deployment) -> None:
    """Limits are checked before a call and counted after it, in both APIs, for each key separately."""
    slow = key("key_slow", tokens=60)
    used = deployment.one.say(slow, tokens=80).usage
    assert used.completion_tokens == 80, "what has begun goes on"
    code, reason, message = refused(lambda: deployment.one.say(slow))
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert "key_slow has used up its 60 tokens per minute" in message
    with pytest.raises(grpc.RpcError) as caught:
        deployment.one.post(slow, model=MODEL, messages=[{"role": "user", "content": "Hi"}])
    trailers = dict(caught.value.trailing_metadata())
    owed = used.prompt_tokens + used.completion_tokens - 60
    assert owed - 10 <= int(trailers["retry-after"]) <= owed + 1, "a token a second"
    assert (trailers["x-http-status"], trailers["x-ratelimit-limit-tokens"]) == ("429", "60")
    assert refused_rest(lambda: deployment.one.post(slow, "CreateCompletion", model=MODEL, prompt="x"))[0] == "429"
    assert refused_rest(lambda: deployment.one.post(slow, "CreateEmbedding", model=ENCODER, input="x"))[0] == "429"
    for background in (False, True):
        assert refused(lambda background=background: deployment.one.respond(slow, background=background))[0] == code
    assert refused(lambda: deployment.one.embed(slow))[1] == "OVERLOADED"
    assert deployment.one.say(key("key_quick", tokens=60_000)).usage.completion_tokens == 4
    assert refused(lambda: deployment.other.say(slow))[1] == "OVERLOADED", "the replicas count together"


def test_embeddings_are_counted(deployment: Deployment) -> None:
    poor = key("key_embedding", tokens=60)
    assert deployment.one.embed(poor, text="word " * 200).input_tokens > 180
    assert refused(lambda: deployment.one.embed(poor))[1] == "OVERLOADED"


def test_a_stream_that_is_cut_is_counted(deployment: Deployment) -> None:
    impatient = key("key_impatient", tokens=60)
    request = chat_service_pb2.StreamChatCompletionRequest(**chat(MODEL, 2000))
    stream = deployment.one.chat.StreamChatCompletion(request, metadata=impatient, timeout=PATIENCE)
    for at, _ in enumerate(stream):
        if at == 100:  # each event has at least one token
            stream.cancel()
            break

    def is_refused() -> bool:
        try:
            deployment.one.embed(impatient)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
            return True
        return False

    until(is_refused)


def test_a_response_in_the_background_is_counted(deployment: Deployment) -> None:
    absent = key("key_absent", tokens=10)
    made = deployment.one.respond(absent, background=True)
    running = (response_pb2.RESPONSE_STATUS_QUEUED, response_pb2.RESPONSE_STATUS_IN_PROGRESS)
    until(lambda: deployment.one.get(absent, made.id).status not in running)
    assert deployment.one.get(absent, made.id).status != response_pb2.RESPONSE_STATUS_FAILED
    assert refused(lambda: deployment.one.respond(absent))[1] == "OVERLOADED"


def test_no_identity_is_in_the_logs(deployment: Deployment) -> None:
    deployment.one.say(key("key_logged"))
    texts = [path.read_text() for path in deployment.logs.glob("*.log")]
    until(lambda: any('"key_logged"' in path.read_text() for path in deployment.logs.glob("*.log")))
    assert len(texts) == 3
    assert not any("v1.eyJ" in text for text in texts)
