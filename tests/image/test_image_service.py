"""`python -m services.image` with a fake catalog: it fetches models, serves, reports and drains."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import psutil
import pytest
import pytest_asyncio
from allm.image.v1 import image_pb2, image_service_pb2, image_service_pb2_grpc
from allm.models.v1 import model_pb2
from allm.openai.v1 import image_service_pb2 as openai_image_service_pb2
from allm.openai.v1 import image_service_pb2_grpc as openai_image_service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from PIL import Image

from services.models.runtime_choice import EngineRegistry
from services.rest.openai.body import json_body
from tests.image.engine.tiny_pipelines import SIDE, saved
from tests.image.image_core import PATIENCE_SECONDS, stored
from tests.processes import has_ended
from tests.provision.catalog_script import ScriptedCatalog

# A worker needs some ten seconds to import torch and diffusers.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

MODEL = "tiny"
SERVICE = "allm.image.v1.ImageService"
PUBLIC_URL = "https://ai.example.org"
POLL_SECONDS = 0.05


@dataclass
class Service:
    """The running service."""

    process: asyncio.subprocess.Process
    channel: grpc.aio.Channel
    catalog: ScriptedCatalog

    @property
    def stub(self) -> image_service_pb2_grpc.ImageServiceStub:
        return image_service_pb2_grpc.ImageServiceStub(self.channel)

    @property
    def rest(self) -> openai_image_service_pb2_grpc.ImagesServiceStub:
        return openai_image_service_pb2_grpc.ImagesServiceStub(self.channel)

    @property
    def state(self) -> Any:
        """Returns the model's state in the latest report."""
        found = [each.status for report in self.catalog.reports for each in report.statuses if each.id == MODEL]
        return found[-1] if found else None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    pipeline = saved("StableDiffusionPipeline", tmp_path_factory.mktemp("tiny"))
    catalog = ScriptedCatalog()
    await catalog.start()
    catalog.tell(stored(MODEL, pipeline, EngineRegistry("cpu", forced=True)).desired)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ALLM_")}
    with tempfile.TemporaryDirectory(prefix="allm-test-") as folder:  # a short path, for the socket
        settings = {
            "ALLM_LISTEN": f"unix:{folder}/s",
            "ALLM_HOME": str(tmp_path_factory.mktemp("home")),
            "ALLM_CATALOG": catalog.address,
            "ALLM_MODEL_ROOTS": str(pipeline),
            "ALLM_METRICS_PORT": "0",
            "ALLM_DRAIN_DELAY_SECONDS": "0",
            "ALLM_DEVICE": "cpu",
            "ALLM_THREADS": "2",
            "ALLM_PUBLIC_URL": PUBLIC_URL,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.image", env=ours | settings, stderr=asyncio.subprocess.DEVNULL
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


def config(**fields: Any) -> image_pb2.ImageConfig:
    return image_pb2.ImageConfig(model=MODEL, **{"steps": 2, "seed": 7} | fields)


async def test_it_is_healthy_and_says_so_of_its_typed_service(service: Service) -> None:
    health = health_pb2_grpc.HealthStub(service.channel)
    for name in ("", SERVICE):
        reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_desired_models_are_provided_reported_and_served(service: Service) -> None:
    await until(lambda: service.state and service.state.state == model_pb2.MODEL_STATE_READY)
    request = image_service_pb2.GenerateImageRequest(config=config(), prompt="a red circle")
    reply = await service.stub.GenerateImage(request, timeout=PATIENCE_SECONDS)
    (drawn,) = reply.images
    assert (reply.model, drawn.width, drawn.height, drawn.seed) == (MODEL, SIDE, SIDE, 7)
    assert Image.open(io.BytesIO(drawn.data)).size == (SIDE, SIDE)
    await until(lambda: service.state.state == model_pb2.MODEL_STATE_LOADED)
    assert service.state.runtime == "diffusers"
    assert {report.modality for report in service.catalog.reports} == {model_pb2.MODALITY_IMAGE}


async def test_a_url_leads_to_the_picture(service: Service) -> None:
    body = json_body({"model": MODEL, "prompt": "x", "steps": 1, "response_format": "url"})
    answers = service.rest.CreateImage(body, timeout=PATIENCE_SECONDS)
    url = json.loads(b"".join([answer.data async for answer in answers]))["data"][0]["url"]
    prefix, _, name = url.rpartition("/")
    assert prefix == f"{PUBLIC_URL}/v1/images/files"
    request = openai_image_service_pb2.GetImageFileRequest(name=name)
    pieces = [piece async for piece in service.rest.GetImageFile(request, timeout=PATIENCE_SECONDS)]
    assert pieces[0].content_type == "image/png"
    assert Image.open(io.BytesIO(b"".join(piece.data for piece in pieces))).size == (SIDE, SIDE)


async def test_unknown_model_is_reported_by_name(service: Service) -> None:
    wrong = image_pb2.ImageConfig(model="nobody")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.stub.GenerateImage(
            image_service_pb2.GenerateImageRequest(config=wrong, prompt="x"), timeout=PATIENCE_SECONDS
        )
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert "nobody" in caught.value.details()


async def test_a_stop_lets_a_running_request_complete_and_leaves_no_process(service: Service) -> None:
    """Runs last: it stops the service."""
    request = image_service_pb2.StreamGenerateImageRequest(config=config(steps=50, count=4), prompt="x")
    stream = service.stub.StreamGenerateImage(request, timeout=PATIENCE_SECONDS)
    events = [(await stream.read()).WhichOneof("event")]
    assert events == ["started"]
    children = psutil.Process(service.process.pid).children(recursive=True)
    assert len(children) >= 3, "a worker and two codecs"
    service.process.terminate()
    while (answer := await stream.read()) is not grpc.aio.EOF:
        events.append(answer.WhichOneof("event"))
    assert events[-1] == "finished"
    assert events.count("image") == 4
    assert await asyncio.wait_for(service.process.wait(), PATIENCE_SECONDS) == 0
    await until(lambda: all(map(has_ended, children)))
