"""The figures of real replicas, as a client that watches the machine gets them through the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import openai
import pytest
from allm.models.v1 import (
    figures_pb2,
    machine_service_pb2,
    machine_service_pb2_grpc,
    model_pb2,
    model_service_pb2,
    model_service_pb2_grpc,
)
from google.protobuf import duration_pb2

from tests.minilm import ENCODER
from tests.speech import librivox
from tests.stack import IMAGE_MODEL, MODEL, SPEECH_MODEL, Stack

PATIENCE = 120.0  # seconds
TEXT, AUDIO, IMAGE = model_pb2.MODALITY_TEXT, model_pb2.MODALITY_AUDIO, model_pb2.MODALITY_IMAGE


def watch(stack: Stack, history: int = 0) -> Iterator[Any]:
    """Yields the events of a watch, until the deadline."""
    request = machine_service_pb2.WatchMachineRequest(history=duration_pb2.Duration(seconds=history))
    with grpc.insecure_channel(stack.grpc_address) as channel:
        yield from machine_service_pb2_grpc.MachineServiceStub(channel).WatchMachine(request, timeout=PATIENCE)


def until(stack: Stack, found: Callable[[Any], bool]) -> Any:
    """Returns the first sample that matches."""
    deadline = time.monotonic() + PATIENCE
    for event in watch(stack, history=900):
        if event.HasField("sample") and found(event.sample):
            return event.sample
        assert time.monotonic() < deadline, event
    raise AssertionError("the watch ended")


def traffic(sample: Any, modality: int) -> Any:
    """Returns the traffic of one modality; empty if it has no replica."""
    return next((each for each in sample.traffic if each.modality == modality), machine_service_pb2.Traffic())


@pytest.fixture(scope="module")
def asked(stack: Stack) -> Stack:
    """The stack, after one request each for text, audio and an image."""
    client = openai.OpenAI(base_url=stack.base_url, api_key="none", timeout=PATIENCE, max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "Count to twenty."}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=20)
    assert answer.choices[0].message.content
    assert client.images.generate(model=IMAGE_MODEL, prompt="a red circle", size="64x64").data
    transcribe(stack)
    return stack


def transcribe(stack: Stack) -> None:
    client = openai.OpenAI(base_url=stack.base_url, api_key="none", timeout=PATIENCE, max_retries=0)
    assert client.audio.transcriptions.create(model=SPEECH_MODEL, file=librivox()[0].path).text


def rising(times: Any) -> bool:
    return bool(0 < times.p50_seconds <= times.p95_seconds <= times.p99_seconds and times.count > 0)


def test_each_model_has_figures_of_its_own(asked: Stack) -> None:
    client = openai.OpenAI(base_url=asked.base_url, api_key="none", timeout=PATIENCE, max_retries=0)
    for _ in range(3):
        assert client.embeddings.create(model=ENCODER, input="a red circle").data
    messages: list[Any] = [{"role": "user", "content": "Count to twenty."}]
    assert client.chat.completions.create(model=MODEL, messages=messages, max_tokens=20).choices

    def own(sample: Any) -> dict[str, Any]:
        return {each.model_id: each for each in traffic(sample, TEXT).models}

    def complete(sample: Any) -> bool:
        found = own(sample)
        return {MODEL, ENCODER} <= set(found) and found[ENCODER].request.count >= 3 and rising(found[MODEL].request)

    sample = until(asked, complete)
    found, text = own(sample), traffic(sample, TEXT)
    assert found[ENCODER].requests_per_second > 0
    assert not found[ENCODER].HasField("first_output"), "it writes no tokens"
    assert not found[ENCODER].HasField("generated_tokens_per_second")
    assert rising(found[MODEL].first_output)
    assert found[MODEL].first_output.p50_seconds <= found[MODEL].request.p99_seconds
    assert sum(each.request.count for each in found.values()) == text.request.count
    assert text.request.p99_seconds <= max(each.request.p99_seconds for each in found.values())
    until(asked, lambda sample: MODEL in own(sample) and own(sample)[MODEL].generated_tokens_per_second > 0)


@pytest.mark.parametrize(
    ("modality", "rates", "others"),
    [
        (TEXT, {"generated_tokens_per_second"}, {"audio_seconds_per_second", "images_per_second"}),
        (AUDIO, {"audio_seconds_per_second"}, {"images_per_second"}),
        (IMAGE, {"images_per_second"}, {"generated_tokens_per_second", "audio_seconds_per_second"}),
    ],
)
def test_requests_of_every_kind_are_counted_and_timed(
    asked: Stack, modality: int, rates: set[str], others: set[str]
) -> None:
    """The figures of the modality's requests may come in different samples."""
    measured = {"first_output", "request"} | ({"output_token"} if modality == TEXT else set())
    until(asked, lambda sample: all(rising(getattr(traffic(sample, modality), each)) for each in measured))
    until(asked, lambda sample: all(getattr(traffic(sample, modality), each) > 0 for each in rates))
    found = traffic(until(asked, lambda sample: traffic(sample, modality).replicas == 1), modality)
    assert not any(found.HasField(each) for each in others), "it never measures that"


def test_replicas_of_one_machine_share_its_memory(asked: Stack) -> None:
    sample = until(asked, lambda sample: len(sample.traffic) == 3 and len(sample.hosts) > 0)
    (host,) = sample.hosts
    assert 0 < host.used_bytes < host.total_bytes
    assert host.threshold_share == pytest.approx(0.9)
    assert host.name


def test_model_events_are_sent_once_with_their_replica(asked: Stack) -> None:
    began = time.time_ns()
    with grpc.insecure_channel(asked.grpc_address) as channel:
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        models.UnloadModel(model_service_pb2.UnloadModelRequest(id=SPEECH_MODEL), timeout=PATIENCE)
    seen: list[Any] = []
    events = watch(asked, history=60)

    def read(wanted: int) -> None:
        """Reads until an event of that kind arrives."""
        while not any(each.kind == wanted for each in seen):
            new = next(events).sample.events
            seen.extend(each for each in new if each.model_id == SPEECH_MODEL and each.time.ToNanoseconds() >= began)

    read(figures_pb2.MACHINE_EVENT_KIND_UNLOADED)
    transcribe(asked)
    read(figures_pb2.MACHINE_EVENT_KIND_LOADED)
    assert {each.replica for each in seen} == {"audio"}
    assert [each.kind for each in seen].count(figures_pb2.MACHINE_EVENT_KIND_UNLOADED) == 1
    times = [each.time.ToNanoseconds() for each in seen]
    assert times == sorted(set(times)), "each is told once"


def test_the_past_comes_first_and_the_present_goes_on_by_itself(asked: Stack) -> None:
    events = watch(asked, history=900)
    times = []
    for event in events:
        if event.HasField("synced"):
            break
        times.append(event.sample.time.ToNanoseconds())
    interval = event.synced.interval.ToMilliseconds() / 1000
    assert 0 < interval <= 5
    assert times == sorted(set(times))
    now = [next(events).sample.time.ToNanoseconds() for _ in range(2)]
    assert times[-1] < now[0] < now[1]
