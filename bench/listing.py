"""The time that the catalog takes to list 1,000 models: `python -m bench.listing`.

The bench registers the models through the catalog's own core and starts the real process on them. A replica reports all
models as ready. The bench then requests both lists over a socket; something changes after each request, so that no
list comes from a cache. It exits with 1 if a median exceeds the target.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc
from allm.openai.v1 import models_service_pb2, models_service_pb2_grpc

from services.catalog.database import MIGRATIONS, CatalogDatabase
from services.catalog.registration.registrations import Registrations
from services.models.descriptor import ModelFacts
from services.models.desired import DesiredModel
from services.models.manifest import Manifest, ManifestFile
from services.models.runtimes import RUNTIMES

MODELS = 1000
TURNS = 20
TARGET_MS = 50.0
START_SECONDS = 60.0


def main() -> int:
    """Prints one line for each list; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="listing-") as folder:
        home = Path(folder)
        asyncio.run(_register(home))
        with _catalog(home) as address:
            medians = asyncio.run(_measure(address))
    for name, median in medians.items():
        verdict = "ok" if median <= TARGET_MS else "MISSED"
        print(f"{name:<36} {median:6.1f} ms for {MODELS} models, target {TARGET_MS:.0f} ms: {verdict}")
    return int(any(median > TARGET_MS for median in medians.values()))


async def _register(home: Path) -> None:
    database = await CatalogDatabase.open(home / "catalog.db", MIGRATIONS)
    registrations = await Registrations.load(database)
    for number in range(MODELS):
        await registrations.add(_model(number), "")
    await database.close()


def _model(number: int) -> DesiredModel:
    """Returns a model of ten shards with an alias."""
    shards = tuple(
        ManifestFile(path=f"model-{shard:05d}-of-00010.safetensors", size=10**9, sha256=f"{number:064x}")
        for shard in range(1, 11)
    )
    facts = ModelFacts(
        id=f"org/model-{number:04d}",
        modality="text",
        format="safetensors",
        architecture="llama",
        capabilities=frozenset({"chat"}),
        size=10**10,
        context_tokens=131_072,
    )
    return DesiredModel(
        facts=facts,
        aliases=(f"alias-{number:04d}",),
        source=f"hf://org/model-{number:04d}@main",
        generation=1,
        manifest=Manifest(files=shards, repository=f"org/model-{number:04d}", revision=f"{number:040x}"),
        created=1_700_000_000 + number,
        updated=1_700_000_000 + number,
    )


@contextmanager
def _catalog(home: Path) -> Iterator[str]:
    """Runs the catalog's process; yields its address."""
    address = f"unix:{home}/s"
    settings = {"ALLM_LISTEN": address, "ALLM_HOME": str(home), "ALLM_METRICS_PORT": "0", "ALLM_LOG_LEVEL": "warning"}
    process = subprocess.Popen([sys.executable, "-m", "services.catalog"], env=os.environ | settings)
    try:
        yield address
    finally:
        process.kill()
        process.wait()


async def _measure(address: str) -> dict[str, float]:
    """Returns the medians in milliseconds, by list."""
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        await asyncio.wait_for(channel.channel_ready(), START_SECONDS)
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        facade = models_service_pb2_grpc.ModelsServiceStub(channel)
        plain, full = (models_service_pb2.ListModelsRequest(state=state) for state in ("", "all"))
        lists: dict[str, Callable[[], Awaitable[object]]] = {
            "ListModels": lambda: models.ListModels(model_service_pb2.ListModelsRequest()),
            "GET /v1/models": lambda: facade.ListModels(plain),
            "GET /v1/models?state=all": lambda: facade.ListModels(full),
        }
        return {name: await _median(models, ask) for name, ask in lists.items()}


async def _median(models: model_service_pb2_grpc.ModelServiceAsyncStub, ask: Callable[[], Awaitable[object]]) -> float:
    times = []
    for turn in range(TURNS):
        await models.ReportModelStatus(_report(turn))
        started = time.perf_counter()
        await ask()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def _report(turn: int) -> model_service_pb2.ReportModelStatusRequest:
    """Returns a report that everything is ready, with another amount of memory each time."""
    status = model_pb2.ReplicaStatus(
        state=model_pb2.MODEL_STATE_READY, generation=1, device="cpu", runtime=RUNTIMES[0].name, peak_memory_bytes=turn
    )
    return model_service_pb2.ReportModelStatusRequest(
        replica="text-1",
        modality=model_pb2.MODALITY_TEXT,
        complete=True,
        device="cpu",
        statuses=[
            model_service_pb2.ModelStatus(id=f"org/model-{number:04d}", status=status) for number in range(MODELS)
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
