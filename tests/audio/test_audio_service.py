"""`python -m services.audio` with a fake catalog: it fetches models, serves, reports and drains."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import psutil
import pytest
import pytest_asyncio
from allm.audio.v1 import transcription_pb2, transcription_service_pb2, transcription_service_pb2_grpc
from allm.models.v1 import model_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.models.runtime_choice import EngineRegistry
from tests.audio.transcribing import MAY_DIFFER, PATIENCE_SECONDS, stored, word_errors
from tests.processes import has_ended
from tests.provision.catalog_script import ScriptedCatalog
from tests.speech import librivox
from tests.whisper_weights import tiny_en_ct2

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "tiny"
SERVICE = "allm.audio.v1.TranscriptionService"
POLL_SECONDS = 0.05


@dataclass
class Service:
    """The running service."""

    process: asyncio.subprocess.Process
    channel: grpc.aio.Channel
    catalog: ScriptedCatalog

    @property
    def stub(self) -> transcription_service_pb2_grpc.TranscriptionServiceStub:
        return transcription_service_pb2_grpc.TranscriptionServiceStub(self.channel)

    @property
    def state(self) -> Any:
        """Returns the model's state in the latest report."""
        found = [each.status for report in self.catalog.reports for each in report.statuses if each.id == MODEL]
        return found[-1] if found else None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    catalog = ScriptedCatalog()
    await catalog.start()
    catalog.tell(stored(MODEL, tiny_en_ct2(), EngineRegistry("cpu", forced=True)).desired)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ALLM_")}
    with tempfile.TemporaryDirectory(prefix="allm-test-") as folder:  # a short path, for the socket
        settings = {
            "ALLM_LISTEN": f"unix:{folder}/s",
            "ALLM_HOME": str(tmp_path_factory.mktemp("home")),
            "ALLM_CATALOG": catalog.address,
            "ALLM_MODEL_ROOTS": str(tiny_en_ct2()),
            "ALLM_METRICS_PORT": "0",
            "ALLM_DRAIN_DELAY_SECONDS": "0",
            "ALLM_DEVICE": "cpu",
            "ALLM_THREADS": "2",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.audio", env=ours | settings, stderr=asyncio.subprocess.DEVNULL
        )
        async with grpc.aio.insecure_channel(f"unix:{folder}/s") as channel:
            await asyncio.wait_for(channel.channel_ready(), PATIENCE_SECONDS)
            yield Service(process, channel, catalog)
        if process.returncode is None:
            process.kill()
            await process.wait()
    await catalog.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(POLL_SECONDS)


def config(model: str = MODEL, **fields: Any) -> transcription_service_pb2.TranscriptionConfig:
    return transcription_service_pb2.TranscriptionConfig(model=model, beam_size=1, **fields)


def requests(content: bytes, **fields: Any) -> Iterator[transcription_service_pb2.TranscribeRequest]:
    yield transcription_service_pb2.TranscribeRequest(config=config(**fields))
    for start in range(0, len(content), 65_536):
        yield transcription_service_pb2.TranscribeRequest(audio=content[start : start + 65_536])


async def test_it_is_healthy_and_says_so_of_its_typed_service(service: Service) -> None:
    health = health_pb2_grpc.HealthStub(service.channel)
    for name in ("", SERVICE):
        reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_desired_models_are_provided_reported_and_served(service: Service) -> None:
    await until(lambda: service.state and service.state.state == model_pb2.MODEL_STATE_READY)
    clip = librivox()[1]
    reply = await service.stub.Transcribe(requests(clip.path.read_bytes()), timeout=PATIENCE_SECONDS)
    assert reply.model == MODEL
    assert word_errors(reply.transcript.text, clip.transcript) < MAY_DIFFER
    await until(lambda: service.state.state == model_pb2.MODEL_STATE_LOADED)
    assert service.state.runtime == "faster_whisper"
    assert {report.modality for report in service.catalog.reports} == {model_pb2.MODALITY_AUDIO}


async def test_unknown_model_is_reported_by_name(service: Service) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.stub.Transcribe(requests(b"sound", model="nobody"), timeout=PATIENCE_SECONDS)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert "nobody" in caught.value.details()


async def test_a_stop_lets_a_running_request_complete_and_leaves_no_process(service: Service) -> None:
    """Runs last: it stops the service."""
    raw = transcription_pb2.RawAudio(sample_rate=16_000)
    stream = service.stub.StreamTranscribe(timeout=PATIENCE_SECONDS)
    await stream.write(transcription_service_pb2.StreamTranscribeRequest(config=config(raw=raw)))
    answers = [(await stream.read()).WhichOneof("event")]
    assert answers == ["started"]
    children = psutil.Process(service.process.pid).children(recursive=True)
    assert children
    service.process.terminate()
    await stream.write(transcription_service_pb2.StreamTranscribeRequest(audio=librivox()[1].path.read_bytes()[44:]))
    await stream.done_writing()
    while (answer := await stream.read()) is not grpc.aio.EOF:
        answers.append(answer.WhichOneof("event"))
    assert answers[-1] == "finished"
    assert "segment" in answers
    assert await asyncio.wait_for(service.process.wait(), PATIENCE_SECONDS) == 0
    await until(lambda: all(map(has_ended, children)))
