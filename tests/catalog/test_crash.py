"""The real process, killed during registrations and reports: confirmed changes persist, and no change is partial."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from allm.models.v1 import model_pb2, model_service_pb2

from services.catalog.registration.registrations import read_all
from tests.catalog.catalog_process import connected, killed, launch, until_serving
from tests.catalog.model_files import gguf

ROUNDS = 20


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="catalog-"))  # a socket path must be short
    yield folder
    shutil.rmtree(folder)


def request(home: Path, model_id: str) -> model_service_pb2.RegisterModelRequest:
    aliases = [f"{model_id}-a", f"{model_id}-b"]
    source = f"file://{home}/files/m.gguf"
    return model_service_pb2.RegisterModelRequest(id=model_id, source=source, format="gguf", aliases=aliases)


async def register_until_killed(home: Path, prefix: str, tried: list[str], confirmed: set[str]) -> None:
    """Registers models one after the other; notes each before the request, and again once confirmed."""
    async with connected(home) as models:
        for number in range(10_000):
            model_id = f"{prefix}-{number}"
            tried.append(model_id)
            try:
                await models.RegisterModel(request(home, model_id))
            except grpc.aio.AioRpcError as error:
                assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), error
                return
            confirmed.add(model_id)


async def report_until_killed(home: Path, replica: str, confirmed: set[str]) -> None:
    """Reports confirmed models as ready, repeatedly."""
    async with connected(home) as models:
        while True:
            said = model_pb2.ReplicaStatus(state=model_pb2.MODEL_STATE_READY, generation=1)
            report = model_service_pb2.ReportModelStatusRequest(
                replica=replica,
                modality=model_pb2.MODALITY_TEXT,
                complete=True,
                device="cpu",
                statuses=[model_service_pb2.ModelStatus(id=model_id, status=said) for model_id in confirmed],
            )
            try:
                await models.ReportModelStatus(report)
            except grpc.aio.AioRpcError as error:
                assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), error
                return


async def check(home: Path, tried: list[str], confirmed: set[str]) -> set[str]:
    """Checks the state after a restart: every confirmed model exists, no unrequested one does, and each is complete."""
    async with connected(home) as models:
        listed = await models.ListModels(model_service_pb2.ListModelsRequest())
        found = {model.id: model for model in listed.models}
        assert confirmed <= found.keys() <= set(tried)
        for model in found.values():
            wanted = request(home, model.id)
            assert (list(model.aliases), model.source) == (list(wanted.aliases), wanted.source)
        for model_id in set(tried[-8:]):  # an interrupted registration is complete or absent
            for name in (model_id, *request(home, model_id).aliases):
                try:
                    answer = await models.GetModel(model_service_pb2.GetModelRequest(id=name))
                except grpc.aio.AioRpcError as error:
                    assert error.code() == grpc.StatusCode.NOT_FOUND
                    assert model_id not in found
                else:
                    assert answer.model.id == model_id
                    assert answer.manifest.files[0].path == "m.gguf"
    with closing(sqlite3.connect(home / "catalog.db")) as database:
        written = {one.id: one for one in read_all(database)}
        names = dict(database.execute("SELECT name, id FROM names JOIN models ON serial = model"))
    assert written.keys() == found.keys()
    assert names == {name: one.id for one in written.values() for name in one.names}
    assert all(len(one.names) == 3 for one in written.values())
    return set(found)


@pytest.mark.slow
async def test_killed_again_and_again_it_has_lost_nothing_and_holds_nothing_half(home: Path) -> None:
    chance = random.Random(3)  # noqa: S311 (when to kill)
    gguf(home / "files" / "m.gguf")
    tried: list[str] = []
    confirmed: set[str] = set()
    in_the_middle = 0
    process = await launch(home)
    try:
        for number in range(ROUNDS):
            await until_serving(process)
            before = await check(home, tried, confirmed)
            confirmed |= before
            clients = [register_until_killed(home, f"m{number}-{name}", tried, confirmed) for name in "xy"]
            tasks = [asyncio.create_task(client) for client in (*clients, report_until_killed(home, "t", confirmed))]
            while len(confirmed) <= len(before):  # noqa: ASYNC110 (the clients note it as they go)
                await asyncio.sleep(0.001)
            await asyncio.sleep(chance.uniform(0, 0.05))
            await killed(process)
            await asyncio.gather(*tasks)
            in_the_middle += any(model_id.startswith(f"m{number}-") for model_id in set(tried) - confirmed)
            process = await launch(home)
        await until_serving(process)
        await check(home, tried, confirmed)
    finally:
        await killed(process)
    assert in_the_middle > ROUNDS // 2, "it was killed in the middle of something"


async def test_a_second_catalog_on_the_same_file_does_not_start(home: Path) -> None:
    first = await launch(home)
    try:
        await until_serving(first)
        second = await launch(home, ALLM_LISTEN=f"unix:{home}/t")
        _, words = await second.communicate()
        assert second.returncode == 1
        assert f"{home}/catalog.db is in use by another catalog" in words.decode().splitlines()[-1]
    finally:
        await killed(first)


@pytest.mark.parametrize(
    ("environ", "code", "words"),
    [
        ({"ALLM_ARTIFACT_PUBLISHERS": "*"}, 2, "ALLM_ARTIFACT_PUBLISHERS='*' is not allowed"),
        ({"ALLM_SUPPORTED_MODELS": "/none.json"}, 1, "ALLM_SUPPORTED_MODELS: /none.json: No such file"),
    ],
)
async def test_a_wrong_setting_stops_the_start(home: Path, environ: dict[str, str], code: int, words: str) -> None:
    process = await launch(home, **environ)
    _, said = await process.communicate()
    assert process.returncode == code
    assert words in said.decode().splitlines()[-1]
    assert "Traceback" not in said.decode()


async def test_a_damaged_file_stops_the_start_in_plain_words(home: Path) -> None:
    (home / "catalog.db").write_bytes(b"no database, but long enough " * 100)
    process = await launch(home)
    _, said = await process.communicate()
    assert process.returncode == 1
    last = said.decode().splitlines()[-1]
    assert last.startswith(f"allm: cannot start: {home}/catalog.db cannot be read")
    assert "Traceback" not in said.decode()


async def test_open_watches_do_not_hold_up_the_end(home: Path) -> None:
    process = await launch(home, ALLM_DRAIN_SECONDS="300")
    try:
        await until_serving(process)
        async with connected(home) as models:
            watch = models.WatchModels(model_service_pb2.WatchModelsRequest())
            assert (await watch.read()).HasField("synced")
            process.send_signal(signal.SIGTERM)
            assert await watch.read() == grpc.aio.EOF
            await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == 0
    finally:
        await killed(process)
