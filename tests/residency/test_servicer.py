"""The residency API on a real listener, and the calls between neighbours."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from allm.models.v1 import residency_service_pb2 as pb
from allm.models.v1 import residency_service_pb2_grpc as pb_grpc

from services.auth.authentication import Authenticator
from services.auth.identity import WATCH_MEMORY
from services.residency import servicer as residency_servicer
from services.residency.memory.device_memory import DeviceMemory
from services.residency.memory.host_memory import HostMemory
from services.residency.memory.memory_estimate import HOST
from services.residency.memory.peer import ask_to_release, peer_address
from services.residency.memory.readings import MemorySnapshot
from services.residency.memory.reservation import Reservation, ResidentKey
from services.residency.residency import Residency
from services.residency.servicer import ResidencyServicer
from services.rpc.call import Call
from services.rpc.channel import OwnIdentity
from tests.identities import KEYS, PUBLIC, ann, identity, new_key, operator, shown

KEY = ResidentKey("org/m", 3, "toy")
ROW = Reservation(
    id="1",
    address="",
    replica="text-1",
    key=KEY,
    devices={HOST: 50, "cuda:0": 70},
    measured={HOST: 40},
    loading=False,
    busy=False,
    pinned=True,
    last_used=1700000000.25,
)
SNAPSHOT = MemorySnapshot(HostMemory(100, 60, "cgroup v2"), (DeviceMemory("cuda:0", 80, 75, {7: 70}, "GPU-a"),), (ROW,))


class Scripted(Residency):
    """Residents that a test scripts."""

    def __init__(self) -> None:
        self.freed: int | None = 120
        self.asked: list[tuple[ResidentKey, str]] = []
        self.now = SNAPSHOT
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.ended = 0

    async def evict(self, key: ResidentKey, reason: str) -> int | None:
        self.asked.append((key, reason))
        await self.may_end.wait()
        self.ended += 1
        return self.freed

    def snapshot(self) -> MemorySnapshot:
        return self.now


@asynccontextmanager
async def serving(folder: Path, residents: Scripted) -> AsyncIterator[tuple[str, ResidencyServicer]]:
    address = f"unix:{folder}/residency.sock"
    server = grpc.aio.server()
    servicer = ResidencyServicer(residents)
    pb_grpc.add_ResidencyServiceServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield address, servicer
    finally:
        await server.stop(0)


async def test_idle_model_is_released(tmp_path: Path) -> None:
    residents = Scripted()
    async with serving(tmp_path, residents) as (address, _):
        assert await ask_to_release(replace(ROW, address=address), 10.0, requester="image-1") == 120
    assert residents.asked == [(KEY, "peer")]


async def test_lone_shard_is_reported(tmp_path: Path) -> None:
    residents = Scripted()
    residents.freed = None
    async with serving(tmp_path, residents) as (address, _):
        assert await ask_to_release(replace(ROW, address=address), 10.0) is None


async def test_a_model_without_memory_is_released_as_well(tmp_path: Path) -> None:
    residents = Scripted()
    residents.freed = 0
    async with serving(tmp_path, residents) as (address, _):
        assert await ask_to_release(replace(ROW, address=address), 10.0) == 0


async def test_a_silent_peer_is_skipped_and_completes_its_eviction(tmp_path: Path) -> None:
    residents = Scripted()
    residents.may_end.clear()
    async with serving(tmp_path, residents) as (address, _):
        assert await ask_to_release(replace(ROW, address=address), seconds=0.3) is None
        assert len(residents.asked) == 1
        residents.may_end.set()
        async with asyncio.timeout(60):
            while not residents.ended:  # noqa: ASYNC110 (it is the server's)
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("address", ["unix:/nowhere/at/all.sock", "127.0.0.1:1", "no address"])
async def test_an_absent_peer_is_skipped(address: str) -> None:
    assert await ask_to_release(replace(ROW, address=address), seconds=5.0) is None


async def test_a_peer_of_another_kind_is_skipped(tmp_path: Path) -> None:
    server = grpc.aio.server()
    server.add_insecure_port(f"unix:{tmp_path}/other.sock")
    await server.start()
    assert await ask_to_release(replace(ROW, address=f"unix:{tmp_path}/other.sock"), 10.0) is None
    await server.stop(0)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"generation": 1, "runtime": "toy"}, "model_id"),
        ({"model_id": "m", "generation": 1}, "runtime"),
        ({"model_id": "m", "runtime": "toy"}, "generation"),
    ],
)
async def test_release_without_a_model_is_refused(tmp_path: Path, given: dict[str, str], missing: str) -> None:
    residents = Scripted()
    async with serving(tmp_path, residents) as (address, _), grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=missing) as refusal:
            await pb_grpc.ResidencyServiceStub(channel).Release(pb.ReleaseRequest(**given))
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert residents.asked == []


async def test_with_keys_only_peers_and_operators_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Call, "authenticator", Authenticator(PUBLIC))
    residents = Scripted()
    async with serving(tmp_path, residents) as (address, _), grpc.aio.insecure_channel(address) as channel:
        row = replace(ROW, address=address)
        assert await ask_to_release(row, 10.0) is None
        assert await ask_to_release(row, 10.0, own=OwnIdentity(new_key(), "text", "text-2")) is None
        assert residents.asked == []
        assert await ask_to_release(row, 10.0, own=OwnIdentity(KEYS["text"], "text", "text-2")) == 120
        stub = pb_grpc.ResidencyServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await stub.GetResidency(pb.GetResidencyRequest(), metadata=ann())
        assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.WatchResidency(pb.WatchResidencyRequest(), metadata=ann()).read()
        for who in (operator(), shown(identity("key_operator", WATCH_MEMORY))):
            assert await stub.GetResidency(pb.GetResidencyRequest(), metadata=who)


async def test_the_watch_reports_memory_and_models(tmp_path: Path) -> None:
    residents = Scripted()
    older = replace(
        ROW, id="2", key=ResidentKey("older", 1, "toy"), last_used=1.0, loading=True, busy=True, pinned=False
    )
    residents.now = replace(SNAPSHOT, residents=(ROW, older))
    async with serving(tmp_path, residents) as (address, _), grpc.aio.insecure_channel(address) as channel:
        reported = (await pb_grpc.ResidencyServiceStub(channel).GetResidency(pb.GetResidencyRequest())).residency
    assert reported.host == pb.HostMemory(total_bytes=100, used_bytes=60, source="cgroup v2")
    assert list(reported.devices) == [pb.DeviceMemory(name="cuda:0", total_bytes=80, used_bytes=75)]
    assert [model.model_id for model in reported.models] == ["older", "org/m"]
    model = reported.models[1]
    assert (model.generation, model.runtime, model.loading, model.busy, model.pinned) == (3, "toy", False, False, True)
    assert list(model.places) == [
        pb.PlaceMemory(place="cuda:0", reserved_bytes=70, measured_bytes=0),
        pb.PlaceMemory(place=HOST, reserved_bytes=50, measured_bytes=40),
    ]
    assert model.last_used_time.ToMilliseconds() == 1700000000250


async def test_a_watch_reports_every_change_and_ends_with_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency_servicer, "WATCH_SECONDS", 0.01)
    residents = Scripted()
    async with serving(tmp_path, residents) as (address, servicer), grpc.aio.insecure_channel(address) as channel:
        watch = pb_grpc.ResidencyServiceStub(channel).WatchResidency(pb.WatchResidencyRequest())
        assert (await watch.read()).residency.host.used_bytes == 60
        residents.now = replace(SNAPSHOT, host=HostMemory(100, 61, "cgroup v2"))
        assert (await watch.read()).residency.host.used_bytes == 61
        servicer.end_watches()
        assert await watch.read() is grpc.aio.EOF
        assert await watch.code() is grpc.StatusCode.OK


async def test_watches_are_limited_and_their_places_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency_servicer, "MAX_WATCHES", 1)
    async with serving(tmp_path, Scripted()) as (address, _), grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.ResidencyServiceStub(channel)
        first = stub.WatchResidency(pb.WatchResidencyRequest())
        await first.read()
        second = stub.WatchResidency(pb.WatchResidencyRequest())
        with pytest.raises(grpc.aio.AioRpcError, match="1 watches are open, which is the limit"):
            await second.read()
        first.cancel()
        async with asyncio.timeout(60):
            while True:
                third = stub.WatchResidency(pb.WatchResidencyRequest())
                try:
                    assert (await third.read()).residency.host.total_bytes == 100
                    break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.01)


# --- the address of a service


@pytest.mark.parametrize("listen", ["unix:/run/text.sock", "127.0.0.1:50051", "[::1]:50051", "text:50051"])
def test_an_address_that_is_one_stays(listen: str) -> None:
    assert peer_address(listen) == listen


@pytest.mark.parametrize("listen", ["0.0.0.0:50051", "[::]:50051", "*:50051"])
def test_wildcard_listener_is_reached_at_the_machines_address(listen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.0.0.7")
    assert peer_address(listen) == "10.0.0.7:50051"


def test_a_machine_without_an_address_is_reached_at_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(_: str) -> str:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "gethostbyname", nowhere)
    assert peer_address("0.0.0.0:50051") == "127.0.0.1:50051"
