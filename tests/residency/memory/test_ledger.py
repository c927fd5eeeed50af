"""The ledger: the memory of one host, reserved by several processes, each of which may end at any moment."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services.errors import Internal
from services.residency.memory.host_memory import read_host_memory
from services.residency.memory.ledger import NAME, Ledger, Pools
from services.residency.memory.ledger_file import LedgerFile
from services.residency.memory.memory_estimate import HOST, MemoryEstimate
from services.residency.memory.readings import Capacity, Room
from services.residency.memory.reservation import Full, ResidentKey
from services.storage import DatabaseUnusable

ROOT = Path(__file__).parents[3]
ROUNDS = 40
KEY = ResidentKey("m", 1, "toy")


class Owner:
    """A running tests/residency/ledger_owner.py."""

    def __init__(self, folder: Path, replica: str) -> None:
        command = [sys.executable, "-m", "tests.residency.ledger_owner", str(folder), replica]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.replica = replica

    def tell(self, command: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{command}\n")

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., list[Owner]]]:
    owners: list[Owner] = []

    def starting(*replicas: str) -> list[Owner]:
        started = [Owner(tmp_path, replica) for replica in replicas]
        owners.extend(started)
        assert [owner.answer() for owner in started] == ["open"] * len(started)
        return started

    yield starting
    for owner in owners:
        owner.end()


@asynccontextmanager
async def opened(folder: Path, replica: str = "here", pools: Pools | None = None) -> AsyncIterator[Ledger]:
    ledger = await Ledger.open(folder, f"unix:/{replica}", replica, pools or Pools({}))
    try:
        yield ledger
    finally:
        await ledger.close()


def host(limit: int, free: int | None = None) -> Callable[[], Capacity]:
    return lambda: Capacity({HOST: Room(limit, limit if free is None else free), "cuda:0": Room(100, 100)})


def marks(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.lock")]


def estimate(count: int) -> MemoryEstimate:
    return MemoryEstimate({HOST: count})


# --- several processes


def test_exactly_one_of_concurrent_reservations_wins(start) -> None:
    owners = start("text", "audio", "image")
    winners = set()
    for turn in range(ROUNDS):
        for owner in owners[turn % 3 :] + owners[: turn % 3]:
            owner.tell("reserve 60 100")
        answers = [owner.answer() for owner in owners]
        assert sorted(answers) == ["full", "full", "reserved"], f"round {turn}"
        winner = owners[answers.index("reserved")]
        winners.add(winner.replica)
        assert winner.ask("release") == "released"
    assert winners == {"text", "audio", "image"}, "each had its chance"


async def test_reservations_of_a_killed_process_vanish(start, tmp_path: Path) -> None:
    (owner,) = start("text")
    assert owner.ask("reserve 60 100") == "reserved"
    async with opened(tmp_path) as ledger:
        assert [row.replica for row in await ledger.all()] == ["text"]
        with pytest.raises(Full):
            await ledger.reserve(KEY, estimate(60), host(100))
        owner.process.send_signal(signal.SIGKILL)
        owner.process.wait()
        assert await ledger.all() == []
        await ledger.reserve(KEY, estimate(60), host(100))
        assert [row.replica for row in await ledger.all()] == ["here"]
    assert marks(tmp_path) == [], "the mark of the dead one is gone, too"


async def test_reservations_of_a_stopped_process_stay(start, tmp_path: Path) -> None:
    (owner,) = start("text")
    assert owner.ask("reserve 60 100") == "reserved"
    owner.process.send_signal(signal.SIGSTOP)
    async with opened(tmp_path) as ledger:
        with pytest.raises(Full) as refusal:
            await ledger.reserve(KEY, estimate(60), host(100))
    assert [row.replica for row in refusal.value.holders] == ["text"]
    owner.process.send_signal(signal.SIGCONT)
    assert owner.ask("release") == "released"


async def test_waiting_for_a_transaction_has_a_limit(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LedgerFile, "busy_milliseconds", 100)
    (owner,) = start("text")
    async with opened(tmp_path) as ledger:
        row = await ledger.reserve(KEY, estimate(10), host(100))
        assert owner.ask("hold") == "held"
        with pytest.raises(Internal, match=f"{NAME} was held by another process") as refusal:
            await ledger.reserve(KEY, estimate(10), host(100))
        assert str(tmp_path) in str(refusal.value)
        await ledger.release(row)  # the release cannot be written, but the caller gets no error
        assert [one.id for one in await ledger.all()] == [row.id], "readers are not held up"
        owner.end()
        await ledger.touch([])
        assert await ledger.all() == [], "what could not be given back is given back later"


async def test_failure_to_share_the_ledger_is_reported(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LedgerFile, "busy_milliseconds", 100)
    (owner,) = start("text")
    assert owner.ask("hold") == "held"
    with pytest.raises(DatabaseUnusable, match=f"{NAME} was held by another process"):
        await Ledger.open(tmp_path, "unix:/here", "here", Pools({}))


# --- one process


async def test_reservation_is_read_back_unchanged(tmp_path: Path) -> None:
    async with opened(tmp_path, "text-1") as one, opened(tmp_path, "image-1") as other:
        row = await one.reserve(KEY, MemoryEstimate({HOST: 5, "cuda:0": 7}, {"weights": 12}), host(100))
        assert (row.loading, row.busy, row.pinned, row.measured) == (True, True, False, {})
        assert (row.address, row.replica, row.key) == ("unix:/text-1", "text-1", KEY)
        assert row.devices == {HOST: 5, "cuda:0": 7}
        assert await other.all() == [row]
        now = replace(
            row, loading=False, busy=False, pinned=True, last_used=12.5, measured={HOST: 4}, devices={HOST: 9}
        )
        await one.touch([now])
        assert await other.all() == [now]
        await one.release(now)
        assert await other.all() == []


async def test_only_what_has_changed_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        row = await ledger.reserve(KEY, estimate(5), host(100))
        with sqlite3.connect(tmp_path / NAME) as watcher:
            (before,) = watcher.execute("PRAGMA data_version").fetchone()
            await ledger.touch([row])
            assert watcher.execute("PRAGMA data_version").fetchone() == (before,)
            await ledger.touch([replace(row, busy=False)])
            assert watcher.execute("PRAGMA data_version").fetchone() != (before,)
        watcher.close()


async def test_late_touch_does_not_restore_a_released_reservation(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        row = await ledger.reserve(KEY, estimate(5), host(100))
        await ledger.release(row)
        await ledger.release(row)
        await ledger.touch([replace(row, busy=False)])
        assert await ledger.all() == []


async def test_the_least_recently_used_come_first(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        rows = [await ledger.reserve(ResidentKey(name, 1, "toy"), estimate(5), host(100)) for name in "abc"]
        await ledger.touch([replace(row, last_used=used) for row, used in zip(rows, (3.0, 1.0, 2.0), strict=True)])
        assert [row.key.model_id for row in await ledger.all()] == ["b", "c", "a"]


async def test_a_refusal_names_the_missing_bytes_and_their_holders(tmp_path: Path) -> None:
    async with opened(tmp_path, "one") as one, opened(tmp_path, "two") as two:
        await one.reserve(KEY, MemoryEstimate({HOST: 70}), host(100))
        await two.reserve(ResidentKey("gpu", 1, "toy"), MemoryEstimate({"cuda:0": 70}), host(100))
        with pytest.raises(Full) as refusal:
            await two.reserve(KEY, MemoryEstimate({HOST: 40, "cuda:0": 1}), host(100))
        assert refusal.value.missing == {HOST: 10}
        assert [row.replica for row in refusal.value.holders] == ["one"]
        assert len(await two.all()) == 2, "nothing was reserved"


async def test_memory_is_read_under_the_reservation_lock(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:

        def reading() -> Capacity:
            other = sqlite3.connect(tmp_path / NAME, timeout=0, isolation_level=None)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            other.close()
            return Capacity({HOST: Room(100, 100)})

        await ledger.reserve(KEY, estimate(5), reading)
        assert len(await ledger.all()) == 1


async def test_cancelled_wait_leaves_nothing_reserved(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        reading, loop = asyncio.Event(), asyncio.get_running_loop()
        go_on = asyncio.Event()

        def capacity() -> Capacity:
            loop.call_soon_threadsafe(reading.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
            return Capacity({})

        waiting = asyncio.create_task(ledger.reserve(KEY, estimate(5), capacity))
        await reading.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()
        assert await ledger.all() == []


async def test_a_failure_to_read_the_memory_reserves_nothing(tmp_path: Path) -> None:
    def capacity() -> Capacity:
        raise ZeroDivisionError

    async with opened(tmp_path) as ledger:
        with pytest.raises(ZeroDivisionError):
            await ledger.reserve(KEY, estimate(5), capacity)
        assert await ledger.all() == []


async def test_leaving_gives_everything_back(tmp_path: Path) -> None:
    async with opened(tmp_path, "stays") as stays:
        async with opened(tmp_path, "goes") as goes:
            await goes.reserve(KEY, estimate(60), host(100))
        await stays.reserve(KEY, estimate(60), host(100))
    assert marks(tmp_path) == []


# --- devices of two containers


async def test_one_name_of_two_gpus_is_not_one_gpu(tmp_path: Path) -> None:
    """Two containers each call their own GPU `cuda:0`; a third container sees both GPUs."""
    first, second = Pools({"cuda:0": "GPU-a"}), Pools({"cuda:0": "GPU-b"})
    both = Pools({"cuda:0": "GPU-b", "cuda:1": "GPU-a"})
    gpus = Capacity({"cuda:0": Room(100, 100), "cuda:1": Room(100, 100)})
    async with opened(tmp_path, "a", first) as a, opened(tmp_path, "b", second) as b, opened(tmp_path, "c", both) as c:
        row = await a.reserve(KEY, MemoryEstimate({"cuda:0": 70}), lambda: gpus)
        await a.touch([replace(row, measured={"cuda:0": 30})])
        await b.reserve(KEY, MemoryEstimate({"cuda:0": 80}), lambda: gpus)
        seen = {row.replica: (row.devices, row.measured) for row in await c.all()}
        assert seen == {"a": ({"cuda:1": 70}, {"cuda:1": 30}), "b": ({"cuda:0": 80}, {})}
        with pytest.raises(Full) as refusal:
            await c.reserve(KEY, MemoryEstimate({"cuda:0": 30, "cuda:1": 30}), lambda: gpus)
        assert refusal.value.missing == {"cuda:0": 10}
        assert [row.replica for row in refusal.value.holders] == ["b"]


# --- unusable files


@pytest.mark.parametrize("content", [b"this is no database" * 1000, b"SQLite format 3\x00" + b"\xff" * 8000])
async def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(DatabaseUnusable, match=r"stop allm and delete the folder|check the disk") as refusal:
        await Ledger.open(tmp_path, "unix:/here", "here", Pools({}))
    assert str(tmp_path / NAME) in str(refusal.value)
    assert (tmp_path / NAME).read_bytes() == content


async def test_another_programs_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / NAME) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = (tmp_path / NAME).read_bytes()
    with pytest.raises(DatabaseUnusable, match="is not allm's ledger"):
        await Ledger.open(tmp_path, "unix:/here", "here", Pools({}))
    assert (tmp_path / NAME).read_bytes() == before


async def test_a_file_that_breaks_while_it_is_open_refuses_loads_and_names_itself(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger, opened(tmp_path) as other:
        row = await ledger.reserve(KEY, estimate(5), host(100))
        await other.reserve(KEY, estimate(5), host(100))  # invalidates the first one's cached pages
        for path in (tmp_path / NAME, tmp_path / f"{NAME}-wal"):
            path.write_bytes(b"\xff" * path.stat().st_size)
        with pytest.raises(Internal, match=r"is damaged .*stop allm and delete the folder") as refusal:
            await ledger.reserve(KEY, estimate(5), host(100))
        assert str(tmp_path / NAME) in refusal.value.message
        await ledger.release(row)  # raises no error


async def test_a_deleted_ledger_is_not_used_further(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        (tmp_path / NAME).unlink()
        with pytest.raises(Internal, match="was deleted or replaced while allm ran: restart allm"):
            await ledger.reserve(KEY, estimate(5), host(100))


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where a folder should be")
    with pytest.raises(DatabaseUnusable, match="ALLM_HOME") as refusal:
        await Ledger.open(tmp_path / "home" / "ledger", "unix:/here", "here", Pools({}))
    assert str(tmp_path / "home" / "ledger") in str(refusal.value)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of one MiB that a test may fill or make read-only."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["/bin/mount", "-t", "tmpfs", "-o", "size=1m", "ledger-test", place], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("file systems can only be mounted by the superuser")
    yield place
    subprocess.run(["/bin/umount", "--lazy", place], check=True)


async def test_a_full_disk_refuses_loads_and_keeps_reservations(small_disk: Path) -> None:
    async with opened(small_disk) as ledger:
        row = await ledger.reserve(KEY, estimate(5), host(100))
        (small_disk / "filler").write_bytes(b"")
        with (small_disk / "filler").open("ab", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"x" * 4096)
        with pytest.raises(Internal, match=r"the disk is full|check the disk") as refusal:
            for _ in range(1000):
                await ledger.reserve(KEY, MemoryEstimate({HOST: 0, "x" * 2000: 0}), host(100))
        assert str(small_disk / NAME) in refusal.value.message
        (small_disk / "filler").unlink()
        rows = await ledger.all()
        assert rows[0] == row
        for each in rows:
            await ledger.release(each)
        assert await ledger.all() == []


async def test_a_disk_that_becomes_read_only_refuses_loads(small_disk: Path) -> None:
    async with opened(small_disk) as ledger:
        await ledger.reserve(KEY, estimate(5), host(100))
    await asyncio.to_thread(subprocess.run, ["/bin/mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(DatabaseUnusable, match="ALLM_HOME") as refusal:
        await Ledger.open(small_disk, "unix:/here", "here", Pools({}))
    assert str(small_disk) in str(refusal.value)


def test_devices_become_pools_and_pools_devices() -> None:
    pools = Pools({HOST: "cgroup 1:2", "cuda:0": "GPU-a"})
    assert pools.shared({HOST: 1, "cuda:0": 2, "cuda:7": 3}) == {"cgroup 1:2": 1, "GPU-a": 2, "cuda:7": 3}
    assert pools.own({"cgroup 1:2": 1, "GPU-a": 2, "GPU-b": 3}) == {HOST: 1, "cuda:0": 2, "GPU-b": 3}


def test_pools_of_this_machine_are_read() -> None:
    assert Pools.read().shared({HOST: 1}) == {read_host_memory().pool: 1}
