"""Transfers from a real HTTP server to a real disk; a retry does not fetch received bytes again."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from services.errors import Cancelled, ModelInvalid, ModelNotReady, Overloaded
from services.models.hub import repository as hub_module
from services.models.hub import transfer
from services.models.hub.repository import Damaged
from services.models.hub.transfer import download
from services.models.manifest import ManifestFile
from tests.loopback_hub import LoopbackHub
from tests.ports import free_port

WEIGHTS = os.urandom(1_000_000)
FILE = ManifestFile(path="deep/model.safetensors", size=len(WEIGHTS))


class Stop(threading.Event):
    """An event that records the timeouts of its waits and returns immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


class Place:
    """A hub with one file, and the file's destination."""

    def __init__(self, hub: LoopbackHub, commit: str, folder: Path) -> None:
        self.hub = hub
        self.commit = commit
        self.folder = folder
        self.target = folder / FILE.path
        self.reports: list[int] = []
        self.stop = Stop()

    def fetch(self, file: ManifestFile = FILE) -> None:
        download("org/model", self.commit, file, self.folder, self.reports.append, self.stop)

    @property
    def ranges(self) -> list[str]:
        return [request.range for request in self.hub.asked(FILE.path, cdn=True)]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "there" / "deep").mkdir(parents=True)
    (tmp_path / "there" / FILE.path).write_bytes(WEIGHTS)
    (tmp_path / "there" / "config.json").write_text("{}")
    (tmp_path / "there" / "empty.txt").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", os.devnull)  # the user may be logged in
    with LoopbackHub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        yield Place(hub, hub.add("org/model", tmp_path / "there"), tmp_path / "here")
    close_session()


def test_a_file_comes_over_a_redirect(place: Place) -> None:
    place.fetch()
    assert place.target.read_bytes() == WEIGHTS
    assert len(place.hub.asked(FILE.path, cdn=False)) == len(place.hub.asked(FILE.path, cdn=True)) == 1
    assert (place.reports[0], place.reports[-1]) == (0, len(WEIGHTS))
    assert place.reports == sorted(place.reports)


def test_a_small_file_and_an_empty_one_come_directly(place: Place) -> None:
    place.fetch(ManifestFile(path="config.json", size=2))
    place.fetch(ManifestFile(path="empty.txt", size=0))
    assert (place.folder / "config.json").read_text() == "{}"
    assert (place.folder / "empty.txt").read_bytes() == b""
    assert place.hub.asked("empty.txt") == [], "there is nothing to ask for"


def test_existing_files_are_not_requested(place: Place) -> None:
    place.fetch()
    place.hub.requests.clear()
    place.fetch()
    assert not place.hub.requests


def test_a_connection_cut_in_the_middle_is_gone_on_from_there(place: Place) -> None:
    place.hub.cut(FILE.path, 300_000)
    place.fetch()
    assert place.target.read_bytes() == WEIGHTS
    assert place.ranges == ["", "bytes=300000-"]
    assert place.hub.sent == len(WEIGHTS), "nothing came twice"


def test_a_connection_that_is_cut_again_and_again_still_gets_there(place: Place) -> None:
    place.hub.cut(FILE.path, 100_000, times=9)
    place.fetch()
    assert place.target.read_bytes() == WEIGHTS
    assert len(place.ranges) == 10
    assert set(place.stop.waits) == {transfer.BACKOFF_SECONDS}, "who gets on need not be patient"


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(place: Place) -> None:
    place.hub.cut(FILE.path, 400_000)
    place.hub.cut(FILE.path, 0, times=transfer.ATTEMPTS)
    with pytest.raises(ModelNotReady, match=r"org/model@.*#deep/model\.safetensors"):
        place.fetch()
    assert place.target.stat().st_size == 400_000
    place.hub.heal()
    place.hub.requests.clear()
    place.fetch()
    assert place.ranges == ["bytes=400000-"]
    assert place.target.read_bytes() == WEIGHTS


def test_a_hub_that_takes_no_ranges_is_fetched_from_the_start(place: Place) -> None:
    place.hub.cut(FILE.path, 300_000)
    place.hub.ignore_ranges = True
    place.fetch()
    assert place.target.read_bytes() == WEIGHTS
    assert place.ranges == ["", "bytes=300000-"]


def test_a_busy_hub_is_given_the_time_that_it_asks_for(place: Place) -> None:
    place.hub.status(FILE.path, 429, times=2, headers={"retry-after": "7"})
    place.fetch()
    assert place.stop.waits == [7.0, 7.0]
    assert place.target.read_bytes() == WEIGHTS


def test_a_busy_hub_that_asks_for_much_time_is_not_waited_for(place: Place) -> None:
    place.hub.status(FILE.path, 429, times=-1, headers={"retry-after": "600"})
    with pytest.raises(Overloaded) as raised:
        place.fetch()
    assert raised.value.retry_after == 600.0
    assert place.stop.waits == []


def test_a_failing_hub_is_asked_with_growing_pauses_and_not_for_ever(place: Place) -> None:
    place.hub.status(FILE.path, 502, times=-1)
    with pytest.raises(ModelNotReady, match="answers 502"):
        place.fetch()
    assert place.stop.waits == [0.5, 1.0, 2.0, 4.0]
    assert len(place.hub.asked(FILE.path)) == transfer.ATTEMPTS


def test_a_hub_that_is_gone_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(ModelNotReady, match=f"no answer from the hub at http://127.0.0.1:{port}"):
        place.fetch()


def test_a_hub_that_falls_silent_is_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "READ_SECONDS", 0.3)
    gate = place.hub.gate(FILE.path, after_bytes=200_000)

    class Opens(Stop):
        def wait(self, timeout: float | None = None) -> bool:
            assert gate.reached.is_set()
            gate.open()
            return super().wait(timeout)

    place.stop = Opens()
    place.fetch()
    assert place.ranges == ["", "bytes=200000-"]
    assert place.target.read_bytes() == WEIGHTS


def test_missing_hub_files_are_requested_once(place: Place) -> None:
    with pytest.raises(ModelInvalid, match=r"has no file 'other\.bin'"):
        place.fetch(ManifestFile(path="other.bin", size=3))
    assert len(place.hub.asked("other.bin")) == 1
    place.hub.token = "hf_for_tests"
    with pytest.raises(ModelInvalid, match="HF_TOKEN"):
        place.fetch()


@pytest.mark.parametrize("size", [len(WEIGHTS) - 1, len(WEIGHTS) + 1])
@pytest.mark.parametrize("there", [0, 1000])
def test_another_size_than_expected_is_noticed_before_the_content_comes(place: Place, size: int, there: int) -> None:
    place.target.parent.mkdir()
    place.target.write_bytes(WEIGHTS[:there])
    with pytest.raises(Damaged, match=f"has {len(WEIGHTS)} bytes, expected {size}"):
        place.fetch(ManifestFile(path=FILE.path, size=size))
    assert place.target.stat().st_size == there


def test_a_hub_file_shorter_than_the_local_one_is_damaged(place: Place) -> None:
    place.target.parent.mkdir()
    place.target.write_bytes(bytes(len(WEIGHTS) + 5))
    with pytest.raises(Damaged, match=f"ends before byte {len(WEIGHTS) + 5}"):
        place.fetch(ManifestFile(path=FILE.path, size=len(WEIGHTS) + 10))


def test_overlong_local_file_is_fetched_again(place: Place) -> None:
    place.target.parent.mkdir()
    place.target.write_bytes(bytes(len(WEIGHTS) + 1))
    place.fetch()
    assert place.target.read_bytes() == WEIGHTS
    assert place.ranges == [""]


def test_a_stopped_download_ends_and_keeps_what_came(place: Place) -> None:
    gate = place.hub.gate(FILE.path, after_bytes=200_000)

    def reported(done: int) -> None:
        if done == 200_000:
            place.stop.set()
            gate.open()

    with pytest.raises(Cancelled):
        download("org/model", place.commit, FILE, place.folder, reported, place.stop)
    assert 200_000 <= place.target.stat().st_size < len(WEIGHTS)


def test_a_download_that_waits_can_be_stopped(place: Place) -> None:
    place.hub.status(FILE.path, 429, times=-1, headers={"retry-after": "50"})

    class StopsAtTheFirstWait(Stop):
        def wait(self, timeout: float | None = None) -> bool:
            self.set()
            return super().wait(timeout)

    place.stop = StopsAtTheFirstWait()
    with pytest.raises(Cancelled):
        place.fetch()
    place.hub.requests.clear()
    with pytest.raises(Cancelled):
        place.fetch()
    assert not place.hub.requests


@pytest.mark.parametrize("path", ["../escaped", "/escaped", "deep/../../escaped", "a//b", ".", "a\\b", "a\0b", ""])
def test_no_path_leaves_the_folder(place: Place, path: str) -> None:
    with pytest.raises(ModelInvalid):
        place.fetch(ManifestFile(path=path, size=1))
    assert list(place.folder.iterdir()) == []
    assert not place.hub.requests


@pytest.mark.parametrize("link", ["deep", "deep/model.safetensors"])
def test_no_link_leads_out_of_the_folder(place: Place, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model.safetensors").write_bytes(b"mine")
    path = place.folder / link
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(outside if link == "deep" else outside / "model.safetensors")
    with pytest.raises(OSError, match=r"model\.safetensors|deep"):
        place.fetch()
    assert (outside / "model.safetensors").read_bytes() == b"mine"
    assert not place.hub.requests


def test_a_hub_that_trickles_is_given_up_and_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(transfer, "SLOW_BYTES", FILE.size)
    place.fetch()
    assert place.target.read_bytes() == WEIGHTS
    starts = [int(asked.removeprefix("bytes=").removesuffix("-") or 0) for asked in place.ranges]
    assert len(starts) > 1
    assert starts == sorted(set(starts)), "what each brought is kept"
    assert set(place.stop.waits) == {transfer.BACKOFF_SECONDS}
