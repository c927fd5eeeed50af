"""One request, one trace: from the gateway through a service to the phases of its worker, without any content."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.audio.v1 import transcription_service_pb2, transcription_service_pb2_grpc
from allm.text.v1 import chat_service_pb2_grpc

from tests.demo_model import demo_model
from tests.otlp_collector import Collector, Seen, Trace, collecting
from tests.speech import librivox
from tests.stack import IMAGE_MODEL, MODEL, SPEECH_MODEL, Stack, running_stack
from tests.text.service import chat, last_event, long_chat, post, streaming, typed_chat, wait_until
from tests.whisper_weights import tiny_en_ct2

# Three models are loaded, one of them with torch.
pytestmark = pytest.mark.slow

SECONDS = 150
SECRET = "zanzibar"
SLACK = 100_000_000  # nanoseconds of clock difference allowed between two processes
SHAPES = Path(__file__).parents[2] / "training" / "shapes_sd" / "weights"
CHAT = "allm.openai.v1.TextService/CreateChatCompletion"
TYPED_CHAT = "allm.text.v1.ChatService/StreamChatCompletion"
TRANSCRIBE = "allm.audio.v1.TranscriptionService/Transcribe"
DRAW = "allm.openai.v1.ImagesService/CreateImage"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Stack]:
    """A separate stack with tracing enabled."""
    models = f"{MODEL}={demo_model()},{SPEECH_MODEL}={tiny_en_ct2()},{IMAGE_MODEL}={SHAPES}"
    settings = {
        "ALLM_MODELS": models,
        "ALLM_AUDIO_REPLICAS": "1",
        "ALLM_IMAGE_REPLICAS": "1",
        "ALLM_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
    }
    with running_stack(tmp_path_factory.mktemp("traced"), **settings) as running:
        yield running


def check_tree(trace: Trace, rpc: str, upstream: str, parts: list[str]) -> tuple[Seen, Seen]:
    """Checks the tree: gateway, upstream request, service, and below it its parts, each within its parent.

    Returns the spans of gateway and service.
    """
    server = trace.one(rpc)
    way = trace.parent(server)
    assert way is not None
    root = trace.parent(way)
    assert root is not None
    assert (root.parent_id, root.service, way.service, way.name) == ("", "allm-gateway", "allm-gateway", upstream)
    assert root.name == f"POST /{rpc}"
    assert server.service == f"allm-{upstream}"
    for name in parts:
        for span in trace.all(name):
            assert trace.parent(span) == server
            assert server.started <= span.started <= span.ended <= server.ended + SLACK
    for outer, inner in ((root, way), (way, server)):
        assert outer.started <= inner.started + SLACK
        assert inner.ended <= outer.ended + SLACK
    return root, server


def check_chain(trace: Trace, *names: str) -> None:
    """Checks that each phase begins when the previous one ends."""
    phases = [trace.one(name) for name in names]
    assert [span.started for span in phases[1:]] == [span.ended for span in phases[:-1]]


def check_silent(trace: Trace, *words: str) -> None:
    for span in trace.spans:
        assert not [word for word in words if word in span.text], span


def log_line(stack: Stack, service: str, request_id: str) -> dict[str, Any]:
    """Returns a request's last line in a service's log; waits for it, because Envoy flushes its log periodically."""
    found: list[dict[str, Any]] = []

    def written() -> bool:
        lines = map(json.loads, (stack.home / "logs" / f"{service}.log").read_text().splitlines())
        found.extend(line for line in lines if line.get("request_id") == request_id)
        return bool(found)

    wait_until(stack, written)
    return found[-1]


def test_a_chat_stream(stack: Stack, collector: Collector) -> None:
    body = chat(f"The capital of France, not of {SECRET}?", stream=True, max_tokens=16, temperature=0)
    with streaming(stack, body) as response:
        request_id = response.headers["x-request-id"]
        assert last_event(response) == "[DONE]"
    root_name = f"POST /{CHAT}"
    trace = collector.trace(request_id, root_name, "text", CHAT, "render", "queue", "prefill", "decode")
    root, server = check_tree(trace, CHAT, "text", ["render", "queue", "prefill", "decode"])
    check_chain(trace, "queue", "prefill", "decode")
    assert trace.one("render").ended <= trace.one("queue").started
    assert server.attributes["gen_ai.operation.name"] == "chat"
    assert server.attributes["gen_ai.request.model"] == MODEL
    assert server.attributes["gen_ai.usage.input_tokens"] > 10
    assert (
        server.attributes["gen_ai.usage.output_tokens"] == trace.one("decode").attributes["gen_ai.usage.output_tokens"]
    )
    assert "error.type" not in server.attributes
    assert root.attributes["http.status_code"] == "200"
    assert root.attributes["http.url"] == "/v1/chat/completions"
    check_silent(trace, SECRET, "capital", "France", "Paris")
    assert log_line(stack, "text", request_id)["trace_id"] == server.trace_id
    assert log_line(stack, "gateway", request_id)["trace_id"] == server.trace_id


def test_first_request_loads_the_model(stack: Stack, collector: Collector) -> None:
    post(stack, chat(max_tokens=1))

    def whole(spans: list[Seen]) -> Trace | None:
        loads = [span for span in spans if span.name == "load" and span.attributes["gen_ai.request.model"] == MODEL]
        trace = Trace([span for span in spans if span.trace_id in {load.trace_id for load in loads}])
        return trace if trace.all(CHAT) else None

    trace = collector.wait(whole)
    load = trace.one("load")
    (waiting,) = [span for span in trace.all("wait for load") if load.span_id in span.links]
    above = trace.parent(load)
    assert above is not None
    assert above == trace.parent(waiting)
    assert above.attributes["rpc.system.name"] == "grpc"
    assert load.attributes["allm.runtime"] == "llama_cpp"


def test_several_answers_to_a_prompt_are_phases_of_one_call(stack: Stack, collector: Collector) -> None:
    reply = post(stack, chat(n=2, max_tokens=4))
    assert reply.status == 200
    trace = collector.trace(reply.headers["x-request-id"], CHAT, f"POST /{CHAT}", "text", "decode")
    _, server = check_tree(trace, CHAT, "text", ["decode"])
    each = [span.attributes["gen_ai.usage.output_tokens"] for span in trace.all("decode")]
    assert len(each) == 2
    usage = reply.json["usage"]
    assert server.attributes["gen_ai.usage.output_tokens"] == sum(each) == usage["completion_tokens"]
    assert server.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]


def test_a_caller_who_hangs_up(stack: Stack, collector: Collector) -> None:
    with streaming(stack, long_chat(stream=True)) as response:
        request_id = response.headers["x-request-id"]
    trace = collector.trace(request_id, CHAT, f"POST /{CHAT}", "text", "decode")
    _, server = check_tree(trace, CHAT, "text", ["queue", "prefill", "decode"])
    assert (server.attributes["error.type"], server.attributes["rpc.response.status_code"]) == ("CANCELLED",) * 2
    assert trace.one("decode").attributes["error.type"] == "CANCELLED"
    assert not server.failed, "it is no fault of ours"


def test_an_error_over_rest(stack: Stack, collector: Collector) -> None:
    """The request id is in the response's header, the log and the trace; the trace holds only the error's code."""
    reply = post(stack, json.dumps({"model": SECRET, "messages": [{"role": "user", "content": SECRET}]}).encode())
    assert reply.status == 404
    assert SECRET in reply.error["message"]
    request_id = reply.headers["x-request-id"]
    trace = collector.trace(request_id, CHAT, f"POST /{CHAT}", "text")
    root, server = check_tree(trace, CHAT, "text", [])
    assert server.attributes["error.type"] == "MODEL_NOT_FOUND"
    assert root.attributes["http.status_code"] == "404"
    assert log_line(stack, "text", request_id)["code"] == "MODEL_NOT_FOUND"
    check_silent(trace, SECRET)
    # The text service has called the catalog, which continues the trace.
    asked = collector.trace(request_id, "allm.models.v1.ModelService/GetModel").all(
        "allm.models.v1.ModelService/GetModel"
    )
    assert [span.parent_id for span in asked] == [server.span_id]


def test_an_error_over_grpc(stack: Stack, collector: Collector) -> None:
    """Envoy would put the message into `grpc.message`."""
    with grpc.insecure_channel(stack.grpc_address) as channel:
        stub = chat_service_pb2_grpc.ChatServiceStub(channel)
        request = typed_chat(SECRET)
        request.model = SECRET
        call = stub.StreamChatCompletion(request, timeout=SECONDS)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    assert SECRET in caught.value.details()
    metadata = dict([*(call.initial_metadata() or ()), *(call.trailing_metadata() or ())])
    trace = collector.trace(metadata["x-request-id"], TYPED_CHAT, f"POST /{TYPED_CHAT}", "text")
    root, _ = check_tree(trace, TYPED_CHAT, "text", [])
    assert root.attributes["grpc.status_code"] == "5"
    assert set(root.attributes["grpc.message"]) == {"-"}
    check_silent(trace, SECRET)


def test_a_secret_in_a_query_stays_out(stack: Stack, collector: Collector) -> None:
    url = f"{stack.base_url}/models?api_key={SECRET}"
    with urllib.request.urlopen(url, timeout=SECONDS) as reply:
        request_id = reply.headers["x-request-id"]
    rpc = "allm.openai.v1.ModelsService/ListModels"
    check_silent(collector.trace(request_id, rpc, f"GET /{rpc}", "catalog"), SECRET)


def test_a_local_program_can_set_its_trace(stack: Stack, collector: Collector) -> None:
    request = urllib.request.Request(f"{stack.base_url}/models", headers={"traceparent": PARENT})
    with urllib.request.urlopen(request, timeout=SECONDS) as reply:
        request_id = reply.headers["x-request-id"]
    rpc = "allm.openai.v1.ModelsService/ListModels"
    root = collector.trace(request_id, rpc, f"GET /{rpc}", "catalog").one(f"GET /{rpc}")
    assert [root.trace_id, root.parent_id] == PARENT.split("-")[1:3]


def test_a_transcription_over_grpc(stack: Stack, collector: Collector) -> None:
    clip = librivox()[0]
    message = transcription_service_pb2.TranscribeRequest
    config = transcription_service_pb2.TranscriptionConfig(model=SPEECH_MODEL, beam_size=1, prompt=SECRET)
    sound = clip.path.read_bytes()
    with grpc.insecure_channel(stack.grpc_address) as channel:
        stub = transcription_service_pb2_grpc.TranscriptionServiceStub(channel)
        requests = iter(
            [message(config=config), message(audio=sound[: len(sound) // 2]), message(audio=sound[len(sound) // 2 :])]
        )
        reply, call = stub.Transcribe.with_call(requests, timeout=SECONDS)
    request_id = dict(call.initial_metadata())["x-request-id"]
    parts = ["decode sound", "queue", "windows"]
    trace = collector.trace(request_id, TRANSCRIBE, f"POST /{TRANSCRIBE}", "audio", *parts)
    _, server = check_tree(trace, TRANSCRIBE, "audio", parts)
    check_chain(trace, "queue", "windows")
    assert server.attributes["gen_ai.operation.name"] == "transcription"
    assert server.attributes["gen_ai.request.model"] == SPEECH_MODEL
    assert abs(server.attributes["allm.audio.seconds"] - clip.seconds) < 0.01
    assert server.attributes["gen_ai.usage.output_tokens"] > 0
    check_silent(trace, SECRET, *(word for word in reply.transcript.text.split() if len(word) > 6))


def test_a_picture(stack: Stack, collector: Collector) -> None:
    body = {"model": IMAGE_MODEL, "prompt": f"a red circle {SECRET}", "steps": 2, "seed": 7}
    request = urllib.request.Request(
        f"{stack.base_url}/images/generations", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as reply:
        request_id = reply.headers["x-request-id"]
        assert json.loads(reply.read())["data"]
    parts = ["queue", "steps", "decode", "encode"]
    trace = collector.trace(request_id, DRAW, f"POST /{DRAW}", "image", *parts)
    _, server = check_tree(trace, DRAW, "image", parts)
    check_chain(trace, "queue", "steps", "decode")
    assert trace.one("steps").started < trace.one("encode").started
    assert server.attributes["gen_ai.operation.name"] == "image_generation"
    assert (server.attributes["allm.images"], server.attributes["allm.steps"]) == (1, 2)
    check_silent(trace, SECRET, "circle")
