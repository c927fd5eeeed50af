"""Fetching models from a loopback hub to a real disk: complete or not at all, and nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from services.byte_count import bytes_word
from services.models.hub import transfer
from services.models.hub.repository import HubTree
from services.models.hub.source import HubSource
from services.models.manifest import Manifest, ManifestFile
from services.provision import fetch as module
from services.provision.fetch import FetchProblem, FetchProgress, Meter, fetch
from services.provision.model_cache import ModelCache
from tests.loopback_hub import LoopbackHub
from tests.provision.fetching_child import written

CONTENT = {
    "config.json": b'{"a": 1}',
    "deep/model-1.safetensors": os.urandom(1_500_000),
    "deep/model-2.safetensors": os.urandom(700_000),
}
LARGE, SECOND = "deep/model-1.safetensors", "deep/model-2.safetensors"
TOTAL = sum(map(len, CONTENT.values()))
DEADLINE = 60.0


class Model:
    """A model on the hub and its destination."""

    def __init__(self, hub: LoopbackHub, manifest: Manifest, model_cache: ModelCache) -> None:
        self.hub = hub
        self.manifest = manifest
        self.model_cache = model_cache
        self.place = model_cache.model_folder("m", manifest)
        self.staging = model_cache.staging("m", manifest)
        self.reports: list[FetchProgress] = []
        self.here = threading.get_ident()

    def tell(self, progress: FetchProgress) -> None:
        assert threading.get_ident() == self.here
        self.reports.append(progress)

    async def fetch(self) -> Path:
        async with asyncio.timeout(DEADLINE):
            return await fetch(self.model_cache, "m", self.manifest, self.tell)

    async def problem(self) -> FetchProblem:
        with pytest.raises(FetchProblem) as raised:
            await self.fetch()
        assert not self.place.exists(), "no half model is visible"
        return raised.value

    def check(self, folder: Path) -> None:
        assert folder == self.place
        found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert found == CONTENT
        assert not self.staging.exists()

    def ranges(self, path: str = LARGE) -> list[str]:
        return [request.range for request in self.hub.asked(path, cdn=True)]


def manifest_of(tree: HubTree) -> Manifest:
    return Manifest(files=tuple(tree.files.values()), repository=tree.repository, revision=tree.revision)


@pytest.fixture
def model(hub: LoopbackHub, tmp_path: Path) -> Model:
    for path, data in CONTENT.items():
        (tmp_path / "there" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / path).write_bytes(data)
    hub.add("org/model", tmp_path / "there")
    manifest = manifest_of(HubTree.open_repository(HubSource("org/model", "", "")))
    hub.requests.clear()
    return Model(hub, manifest, ModelCache(tmp_path / "models"))


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.02)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 (what is waited for happens on a disk, or in another thread)
            await asyncio.sleep(0.01)


def hub_without_answers(model: Model) -> None:
    """Makes the hub refuse every further request."""
    model.hub.requests.clear()
    for path in CONTENT:
        model.hub.status(path, 404, times=-1)


# --- fetched files


async def test_a_model_comes_whole_and_is_not_fetched_again(model: Model) -> None:
    model.check(await model.fetch())
    assert model.hub.sent == TOTAL
    hub_without_answers(model)
    model.check(await model.fetch())
    assert not model.hub.requests


async def test_progress_counts_all_bytes_of_both_stages(model: Model) -> None:
    await model.fetch()
    assert model.reports[0].stage == "downloading"
    assert {progress.total for progress in model.reports} == {TOTAL}
    assert all(0 <= progress.done <= TOTAL for progress in model.reports)
    assert model.reports[-1] == FetchProgress("verifying", TOTAL, TOTAL)
    stages = [progress.stage for progress in model.reports]
    assert stages == sorted(stages), "first all of one, then all of the other"


def test_progress_is_reported_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("services.provision.fetch.time.monotonic", lambda: clock[0])
    messages: list[FetchProgress] = []
    meter = Meter(1000, messages.append)
    for done in range(1000):
        meter.downloaded("a", done)
        clock[0] += 0.01
    assert 40 < len(messages) <= 51
    meter.downloaded("a", 1000)
    assert messages[-1] == FetchProgress("verifying", 0, 1000), "the end of a stage is told at once"


async def test_nothing_is_visible_before_everything_is_there(model: Model) -> None:
    gate = model.hub.gate(LARGE, after_bytes=1_000_000)
    task = asyncio.create_task(model.fetch())
    await until(gate.reached.is_set)
    await until((model.staging / SECOND).exists)
    assert not model.place.exists()
    gate.open()
    model.check(await task)


async def test_a_few_files_are_fetched_at_a_time(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(20):
        (tmp_path / "there" / f"{index}.bin").write_bytes(bytes(100_000))
    model.hub.add("org/model", tmp_path / "there")
    model.manifest = manifest_of(HubTree.open_repository(HubSource("org/model", "", "")))
    running: set[str] = set()
    most = [0]
    full = threading.Event()

    def counted(*arguments: Any) -> None:
        running.add(arguments[2].path)
        most[0] = max(most[0], len(running))
        if len(running) >= module.FILES_AT_ONCE:
            full.set()
        assert full.wait(DEADLINE)
        transfer.download(*arguments)
        running.discard(arguments[2].path)

    monkeypatch.setattr(module, "download", counted)
    await model.fetch()
    assert most == [module.FILES_AT_ONCE]


async def test_local_files_are_only_looked_at(model: Model, tmp_path: Path) -> None:
    files = tuple(ManifestFile(path=path, size=len(data)) for path, data in CONTENT.items())
    model.manifest = Manifest(files=files, folder=str(tmp_path / "there"))
    assert await model.fetch() == tmp_path / "there"
    (tmp_path / "there" / "config.json").write_text("{}")
    with pytest.raises(FetchProblem, match=r"config\.json has 2 bytes, expected 8") as raised:
        await model.fetch()
    assert raised.value.permanent
    assert not model.hub.requests
    assert not model.model_cache.folder.exists()


# --- failures on the way


async def test_a_lost_connection_resumes(model: Model) -> None:
    model.hub.cut(LARGE, 600_000)
    model.check(await model.fetch())
    assert model.ranges() == ["", "bytes=600000-"]
    assert model.hub.sent == TOTAL


async def test_a_file_that_comes_damaged_once_is_fetched_once_more_from_zero(model: Model) -> None:
    model.hub.corrupt(LARGE)
    model.check(await model.fetch())
    assert model.ranges() == ["", ""]
    assert model.ranges(SECOND) == [""]


async def test_a_file_that_comes_damaged_twice_is_named_with_both_hashes(model: Model) -> None:
    model.hub.corrupt(LARGE, times=-1)
    problem = await model.problem()
    expected = next(file.sha256 for file in model.manifest.files if file.path == LARGE)
    assert problem.permanent
    assert re.search(rf"deep/model-1\.safetensors has SHA-256 [0-9a-f]{{64}}, expected {expected}", problem.message)
    assert model.ranges() == ["", ""]
    assert not (model.staging / LARGE).exists()
    model.hub.heal()
    model.check(await model.fetch())


async def test_a_file_of_another_size_is_named_with_both_sizes(model: Model) -> None:
    files = [
        ManifestFile(path=file.path, size=file.size + 7, sha256=file.sha256) if file.path == LARGE else file
        for file in model.manifest.files
    ]
    model.manifest = Manifest(files=tuple(files), repository="org/model", revision=model.manifest.revision)
    model.place, model.staging = (
        model.model_cache.model_folder("m", model.manifest),
        model.model_cache.staging("m", model.manifest),
    )
    problem = await model.problem()
    assert problem.permanent
    assert "has 1500000 bytes, expected 1500007" in problem.message


async def test_files_of_an_earlier_attempt_are_not_trusted(model: Model) -> None:
    (model.staging / "deep").mkdir(parents=True)
    (model.staging / LARGE).write_bytes(bytes(1_000_000))
    (model.staging / SECOND).write_bytes(CONTENT[SECOND])
    (model.staging / "config.json").write_bytes(b"[1, 2,3]")  # the size is right, and no hash detects the change
    model.check(await model.fetch())
    assert model.ranges() == ["bytes=1000000-", ""]
    assert model.ranges(SECOND) == []


async def test_foreign_files_are_not_published(model: Model, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (model.staging / "deep" / "other").mkdir(parents=True)
    (model.staging / "deep" / "other" / "x.bin").touch()
    (model.staging / "y.bin").touch()
    (model.staging / "config.json").mkdir()
    (model.staging / "link").symlink_to(outside)
    (model.staging / LARGE).symlink_to(outside / "weights")
    model.check(await model.fetch())
    assert list(outside.iterdir()) == [outside / "kept"]


@pytest.mark.parametrize("code", [401, 403, 404])
async def test_access_denied_by_the_hub_is_a_permanent_problem(model: Model, code: int) -> None:
    model.hub.status(LARGE, code, times=-1)
    problem = await model.problem()
    assert problem.permanent
    assert problem.retry_after is None
    assert f"hf://org/model@{model.manifest.revision}#{LARGE}" in problem.message
    assert len(model.hub.asked(LARGE)) == 1


async def test_a_busy_hub_is_retried_after_its_retry_time(model: Model) -> None:
    model.hub.status(LARGE, 429, headers={"retry-after": "600"})
    problem = await model.problem()
    assert (problem.permanent, problem.retry_after) == (False, 600.0)
    model.check(await model.fetch())


async def test_a_failing_hub_is_retried(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model.hub.status(LARGE, 500, times=-1)
    problem = await model.problem()
    assert not problem.permanent
    assert problem.retry_after
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert not (await model.problem()).permanent


async def test_one_failed_file_cancels_the_others(model: Model) -> None:
    """The others are too slow to finish before the test does."""
    model.hub.bytes_per_second = 10_000
    model.hub.status("config.json", 404, times=-1)
    problem = await model.problem()
    assert "config.json" in problem.message
    assert problem.permanent


# --- the disk


async def test_a_model_that_does_not_fit_is_refused_before_anything_is_fetched(model: Model) -> None:
    huge = ManifestFile(path="huge.bin", size=1 << 60)
    model.manifest = Manifest(files=(huge,), repository="org/model", revision=model.manifest.revision)
    problem = await model.problem()
    assert not problem.permanent
    assert problem.retry_after
    assert re.search(r"needs 1,048,576 TiB more in .*models \(ALLM_MODELS_DIR\)", problem.message)
    assert re.search(r"; [\d,.]+ \w+ are free: remove", problem.message)
    assert not model.hub.requests


async def test_existing_files_need_no_space(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    (model.staging / "deep").mkdir(parents=True)
    (model.staging / LARGE).write_bytes(CONTENT[LARGE][:1_000_000])
    monkeypatch.setattr(module, "MARGIN", 1 << 60)
    problem = await model.problem()
    assert f"needs {bytes_word(TOTAL - 1_000_000)} more" in problem.message


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_a_disk_that_fails_meanwhile_is_a_passing_problem(
    model: Model, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code), str(model.staging / LARGE))

    monkeypatch.setattr(module, "download", full)
    problem = await model.problem()
    assert not problem.permanent
    assert problem.retry_after == module.DISK_SECONDS
    assert problem.message == f"{model.staging / LARGE} cannot be written: {os.strerror(code)}"


async def test_cache_folder_that_cannot_be_created_is_a_temporary_problem(model: Model) -> None:
    model.model_cache.folder.write_text("no folder")
    with pytest.raises(FetchProblem, match="cannot be written") as raised:
        await model.fetch()
    assert not raised.value.permanent


async def test_published_files_that_were_damaged_are_fetched_again_and_only_those(model: Model) -> None:
    await model.fetch()
    os.truncate(model.place / LARGE, 100)
    (model.place / "config.json").unlink()
    model.hub.requests.clear()
    with (model.place / LARGE).open("rb") as used:
        model.check(await model.fetch())
        assert len(used.read()) == 100, "whoever had the damaged file open keeps it"
    assert model.ranges() == [""]
    assert model.ranges(SECOND) == []


# --- paths


@pytest.mark.parametrize("path", ["../escaped", "/escaped", "deep/../../../escaped", "a/./b", "c:\\x", ""])
async def test_manifest_cannot_lead_out_of_the_cache(model: Model, tmp_path: Path, path: str) -> None:
    files = (*model.manifest.files, ManifestFile(path=path, size=8))
    model.manifest = Manifest(files=files, repository="org/model", revision=model.manifest.revision)
    problem = await model.problem()
    assert problem.permanent
    assert not model.hub.requests
    assert os.listdir(tmp_path) == ["there"]  # noqa: PTH208 (pathlib's way is refused here as blocking)


async def test_a_staging_folder_that_is_a_link_is_not_followed(model: Model, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    model.staging.parent.mkdir(parents=True)
    model.staging.symlink_to(outside)
    model.check(await model.fetch())
    assert list(outside.iterdir()) == [outside / "kept"]


# --- cancellation, death, and other processes


async def test_a_cancelled_fetch_leaves_no_thread_and_can_be_resumed(model: Model) -> None:
    gate = model.hub.gate(LARGE, after_bytes=1_000_000)
    task = asyncio.create_task(model.fetch())
    await until(gate.reached.is_set)
    await until(lambda: (model.staging / LARGE).stat().st_size == 1_000_000)
    task.cancel()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task
    lock = model.model_cache.fetch_lock("m", model.manifest)
    assert lock.take(), "others may go on"
    lock.release()
    assert not model.place.exists()
    left = (model.staging / LARGE).stat().st_size
    assert left >= 1_000_000
    model.hub.requests.clear()
    model.check(await model.fetch())
    assert model.ranges() == ([f"bytes={left}-"] if left < len(CONTENT[LARGE]) else [])


async def test_a_fetch_that_waits_for_another_can_be_cancelled(model: Model) -> None:
    lock = model.model_cache.fetch_lock("m", model.manifest)
    assert lock.take()
    task = asyncio.create_task(model.fetch())
    await until(lambda: model.reports)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    lock.release()
    assert not model.hub.requests


@contextlib.contextmanager
def child_of(model: Model) -> Iterator[subprocess.Popen[str]]:
    """Yields another replica on the same volume."""
    command = [
        sys.executable,
        "-m",
        "tests.provision.fetching_child",
        str(model.model_cache.folder),
        written(model.manifest),
    ]
    environ = {"HF_ENDPOINT": model.hub.endpoint, "PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]}
    environ["HF_HOME"] = str(model.model_cache.folder.parent)
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


async def test_a_killed_fetch_is_resumed_by_the_next_process(model: Model) -> None:
    gate = model.hub.gate(LARGE, after_bytes=1_000_000)
    with child_of(model) as child:
        await until(gate.reached.is_set)
        await until(lambda: (model.staging / LARGE).stat().st_size == 1_000_000)
        await until(lambda: (model.staging / SECOND).stat().st_size == len(CONTENT[SECOND]))
        child.kill()
        child.wait()
    assert not model.place.exists()
    model.hub.heal()
    model.hub.requests.clear()
    model.check(await model.fetch())
    assert model.ranges() == ["bytes=1000000-"]
    assert model.ranges(SECOND) == []


async def test_two_replicas_on_one_volume_download_once(model: Model) -> None:
    gate = model.hub.gate(LARGE, after_bytes=1_000_000)
    with child_of(model) as child:
        await until(gate.reached.is_set)
        task = asyncio.create_task(model.fetch())
        reached = TOTAL - len(CONTENT[LARGE]) + 1_000_000
        await until(lambda: FetchProgress("downloading", reached, TOTAL, waits=True) in model.reports)
        gate.open()
        model.check(await task)
        output, _ = await asyncio.to_thread(child.communicate)
        assert output.splitlines()[-1] == str(model.place)
    assert model.hub.sent == TOTAL
    assert [len(model.hub.asked(path, cdn=False)) for path in CONTENT] == [1, 1, 1]


async def test_when_the_replica_that_fetches_is_killed_the_one_that_waits_goes_on(model: Model) -> None:
    gate = model.hub.gate(LARGE, after_bytes=1_000_000)
    with child_of(model) as child:
        await until(gate.reached.is_set)
        await until(lambda: (model.staging / LARGE).stat().st_size == 1_000_000)
        task = asyncio.create_task(model.fetch())
        await until(lambda: model.reports)
        child.kill()
        child.wait()
        gate.open()
        model.check(await task)
    assert model.ranges() == ["", "bytes=1000000-"]


async def test_two_fetches_in_one_process_download_once(model: Model) -> None:
    first, second = await asyncio.gather(model.fetch(), model.fetch())
    assert first == second
    model.check(first)
    assert model.hub.sent == TOTAL
