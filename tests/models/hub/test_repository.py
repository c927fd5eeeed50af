"""Listing and reading a repository through a real HTTP server; nothing else is transferred."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
from huggingface_hub import constants

from services.errors import ModelInvalid, ModelNotReady, Overloaded
from services.models.hub import repository as module
from services.models.hub.repository import Damaged, HubTree
from services.models.hub.source import HubSource
from tests.loopback_hub import LISTING, LoopbackHub
from tests.ports import free_port

SOURCE = HubSource("org/model", "", "")
WEIGHTS = os.urandom(3_000_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "model"
    (top / "text encoder").mkdir(parents=True)
    (top / "config.json").write_text('{"a": 1}')
    (top / "text encoder" / "ünï.json").write_text("{}")
    (top / "model.safetensors").write_bytes(WEIGHTS)
    return top


def test_a_listing_has_sizes_and_hashes_and_pins_the_commit(hub: LoopbackHub, folder: Path) -> None:
    commit = hub.add("org/model", folder)
    tree = HubTree.open_repository(SOURCE)
    assert (tree.repository, tree.revision, tree.folder) == ("org/model", commit, "")
    assert list(tree.files) == ["config.json", "model.safetensors", "text encoder/ünï.json"]
    weights, config = tree.files["model.safetensors"], tree.files["config.json"]
    assert (weights.size, len(weights.sha256)) == (len(WEIGHTS), 64)
    assert (config.size, config.sha256) == (8, "")
    assert len(hub.requests) == 1


def test_reads_what_belongs_to_the_commit_also_after_the_branch_went_on(hub: LoopbackHub, folder: Path) -> None:
    first = hub.add("org/model", folder)
    tree = HubTree.open_repository(SOURCE)
    (folder / "config.json").write_text('{"a": 2}')
    second = hub.add("org/model", folder)
    assert first != second
    with tree.open("config.json") as file:
        assert json.load(file) == {"a": 1}
    newer = HubTree.open_repository(SOURCE)
    assert newer.revision == second
    with newer.open("config.json") as file:
        assert json.load(file) == {"a": 2}


@pytest.mark.parametrize("revision", ["main", "refs/pr/1"])
def test_a_revision_is_a_branch_a_commit_or_anything_else_that_has_a_name(
    hub: LoopbackHub, folder: Path, revision: str
) -> None:
    commit = hub.add("org/model", folder, revision)
    assert HubTree.open_repository(HubSource("org/model", revision, "")).revision == commit
    assert HubTree.open_repository(HubSource("org/model", commit, "")).revision == commit


def test_a_name_with_spaces_and_other_letters_is_found(hub: LoopbackHub, folder: Path) -> None:
    hub.add("org/model", folder)
    with HubTree.open_repository(SOURCE).open("text encoder/ünï.json") as file:
        assert file.read() == b"{}"


def test_reading_a_header_does_not_transfer_the_weights(hub: LoopbackHub, folder: Path) -> None:
    hub.add("org/model", folder)
    tree = HubTree.open_repository(SOURCE)
    with tree.open("model.safetensors") as file:
        assert hub.asked("model.safetensors") == []
        assert file.read(8) == WEIGHTS[:8]
        assert file.read(1000) == WEIGHTS[8:1008]
    assert [request.range for request in hub.asked("model.safetensors", cdn=True)] == ["bytes=0-65535"]
    assert hub.sent == 65536


def test_a_file_can_be_read_anywhere_and_wholly(hub: LoopbackHub, folder: Path) -> None:
    hub.add("org/model", folder)
    with HubTree.open_repository(SOURCE).open("model.safetensors") as file:
        assert file.seek(-4, os.SEEK_END) == len(WEIGHTS) - 4
        assert file.read() == WEIGHTS[-4:]
        assert file.read(1) == b""
        file.seek(1_000_000)
        assert file.read(10) == WEIGHTS[1_000_000:1_000_010]
        file.seek(5, os.SEEK_CUR)
        assert file.read(10) == WEIGHTS[1_000_015:1_000_025]
        file.seek(0)
        assert file.read() == WEIGHTS
    pieces = len(hub.asked("model.safetensors", cdn=True))
    assert pieces < 12, "reading on asks for larger and larger pieces"


def test_two_hundred_headers_cost_two_hundred_small_requests(hub: LoopbackHub, tmp_path: Path) -> None:
    header = struct.pack("<Q", 2) + b"{}"
    names = [f"model-{index:05}-of-00200.safetensors" for index in range(1, 201)]
    for name in names:
        (tmp_path / name).write_bytes(header + bytes(200_000))
    hub.add("org/model", tmp_path)
    tree = HubTree.open_repository(SOURCE)

    def read(name: str) -> bytes:
        with tree.open(name) as file:
            return file.read(len(header))

    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(read, names)) == [header] * 200
    assert hub.sent == 200 * 65536


def test_a_hub_that_takes_no_ranges_is_not_downloaded_from(hub: LoopbackHub, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(bytes(1_000_000) + b"x" * 40_000_000)
    hub.add("org/model", tmp_path)
    hub.ignore_ranges = True
    with HubTree.open_repository(SOURCE).open("model.gguf") as file:
        assert file.read(8) == bytes(8)
        file.seek(1_000_000)
        assert file.read(8) == b"x" * 8, "what lies near the beginning can be skipped to"
        file.seek(39_000_000)
        with pytest.raises(ModelInvalid, match=r"org/model@.*#model\.gguf.*does not answer range requests"):
            file.read(8)
    # Data in flight at the disconnect counts, too: the socket buffers hold it.
    assert hub.sent < 25_000_000


def test_a_hub_that_is_slow_with_each_of_many_files_is_not_waited_for(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/model", folder)
    monkeypatch.setattr(module, "TREE_SECONDS", 0.0)
    tree = HubTree.open_repository(SOURCE)
    with tree.open("config.json") as file, pytest.raises(ModelNotReady, match="too slow"):
        file.read()


@pytest.mark.parametrize("reported", ["bytes 0-1/" + "9" * 5000, "bytes 0-" + "9" * 5000 + "/8", "bytes \u0660-1/8"])
def test_a_part_in_numbers_that_are_none_is_damaged(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch, reported: str
) -> None:
    hub.add("org/model", folder)
    tree = HubTree.open_repository(SOURCE)

    class Answer:
        status_code = 206
        headers: ClassVar[dict[str, str]] = {"content-range": reported}

    remote = module.Remote(tree.repository, tree.revision, "config.json")
    with pytest.raises(Damaged, match="another part"):
        module.starts_at(remote, Answer(), 0, 8)  # type: ignore[arg-type]


def test_a_file_that_is_not_there_cannot_be_opened(hub: LoopbackHub, folder: Path) -> None:
    hub.add("org/model", folder)
    tree = HubTree.open_repository(SOURCE)
    for path in ("other.json", "../config.json", ".gitattributes"):
        with pytest.raises(ModelInvalid, match="has no file"):
            tree.open(path)


def test_a_file_whose_size_is_not_the_listed_one_is_damaged(hub: LoopbackHub, folder: Path) -> None:
    hub.add("org/model", folder)
    tree = HubTree.open_repository(SOURCE)
    sizes = {path: file.__class__(path=path, size=file.size + 1) for path, file in tree.files.items()}
    wrong = HubTree(tree.repository, tree.revision, sizes)
    with wrong.open("config.json") as file, pytest.raises(Damaged, match="has 8 bytes, expected 9"):
        file.read()
    with wrong.open("model.safetensors") as file, pytest.raises(Damaged, match=f"has {len(WEIGHTS)} bytes"):
        file.read(8)


# --- what can be wrong with the hub


def test_a_repository_that_is_not_there_may_be_private(hub: LoopbackHub) -> None:
    with pytest.raises(ModelInvalid, match=r"hf://org/model.*401.*private or gated.*HF_TOKEN"):
        HubTree.open_repository(SOURCE)


def test_a_private_repository_opens_with_the_token_which_the_cdn_never_sees(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/model", folder)
    hub.token = "hf_for_tests"
    with pytest.raises(ModelInvalid, match="HF_TOKEN"):
        HubTree.open_repository(SOURCE)
    monkeypatch.setenv("HF_TOKEN", "hf_for_tests")
    hub.requests.clear()
    with HubTree.open_repository(SOURCE).open("model.safetensors") as file:
        assert file.read(8) == WEIGHTS[:8]
    assert [(request.cdn, request.authorized) for request in hub.requests] == [
        (False, True),
        (False, True),
        (True, False),
    ]


def test_a_repository_or_revision_that_is_not_found_is_named(hub: LoopbackHub, folder: Path) -> None:
    hub.add("org/model", folder)
    with pytest.raises(ModelInvalid, match="org/model has no revision 'v2'"):
        HubTree.open_repository(HubSource("org/model", "v2", ""))
    hub.status(LISTING, 404)
    with pytest.raises(ModelInvalid, match=r"hf://org/model: no such repository \(at http://127"):
        HubTree.open_repository(SOURCE)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "17"}, 17.0),
        ({"retry-after": "999999"}, 3600.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 1.0),
        ({"ratelimit": '"api";r=0;t=55'}, 55.0),
        ({}, 5.0),
        ({"retry-after": "soon"}, 5.0),
    ],
)
def test_a_busy_hub_says_when_to_come_back(
    hub: LoopbackHub, folder: Path, headers: dict[str, str], seconds: float
) -> None:
    hub.add("org/model", folder)
    hub.status(LISTING, 429, times=-1, headers=headers)
    with pytest.raises(Overloaded, match="429") as raised:
        HubTree.open_repository(SOURCE)
    assert raised.value.retry_after == seconds
    assert len(hub.requests) == 1, "it is not asked again at once"


def test_a_hub_that_fails_once_is_asked_again(hub: LoopbackHub, folder: Path) -> None:
    hub.add("org/model", folder)
    hub.status(LISTING, 503)
    tree = HubTree.open_repository(SOURCE)
    hub.cut("model.safetensors", 1000)
    with tree.open("model.safetensors") as file:
        assert file.read(2000) == WEIGHTS[:2000]


def test_a_hub_that_goes_on_failing_is_named(hub: LoopbackHub, folder: Path) -> None:
    hub.add("org/model", folder)
    hub.status(LISTING, 500, times=-1)
    with pytest.raises(ModelNotReady, match=r"hf://org/model: the hub at http://127\.0\.0\.1:\d+ answers 500"):
        HubTree.open_repository(SOURCE)
    assert len(hub.requests) == 2


def test_a_hub_that_cannot_be_reached_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://me:secret@127.0.0.1:{port}")
    with pytest.raises(ModelNotReady, match=f"no answer from the hub at http://127.0.0.1:{port}") as raised:
        HubTree.open_repository(SOURCE)
    assert "secret" not in str(raised.value)
    assert str(raised.value).endswith(": check network, proxy and HF_ENDPOINT")


def test_a_hub_that_falls_silent_is_not_waited_for(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/model", folder)
    tree = HubTree.open_repository(SOURCE)
    monkeypatch.setattr(module, "READ_SECONDS", 0.2)
    gate = hub.gate("model.safetensors", after_bytes=100)
    with tree.open("model.safetensors") as file, pytest.raises(ModelNotReady, match="no answer"):
        file.read(1000)
    assert gate.reached.is_set()


def test_no_message_holds_the_signature_of_an_address(hub: LoopbackHub, folder: Path) -> None:
    hub.add("org/model", folder)
    tree = HubTree.open_repository(SOURCE)
    hub.cut("model.safetensors", 10, times=-1)
    with tree.open("model.safetensors") as file, pytest.raises(ModelNotReady) as raised:
        file.read(1000)
    assert "signature" not in str(raised.value)


def test_offline_mode_is_named(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotReady, match="HF_HUB_OFFLINE"):
        HubTree.open_repository(SOURCE)
    assert not hub.requests


COMMIT = "0" * 40


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"<html>", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[]", "not an object"),
        ({"siblings": []}, "returned no commit"),
        ({"sha": "main", "siblings": []}, "returned no commit"),
        ({"sha": COMMIT}, "lists no files"),
        ({"sha": COMMIT, "siblings": ["a"]}, "lists no files"),
        ({"sha": COMMIT, "siblings": [{"size": 1}]}, "without a name"),
        ({"sha": COMMIT, "siblings": [{"rfilename": "a"}]}, "does not say how large 'a' is"),
        ({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": True}]}, "how large"),
        ({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": -1}]}, "size of -1"),
        ({"sha": COMMIT, "siblings": [{"rfilename": "../a", "size": 1}]}, "leaves the model's folder"),
        ({"sha": COMMIT, "siblings": [{"rfilename": "/a", "size": 1}]}, "not allowed"),
        ({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 1, "lfs": {"sha256": "x"}}]}, "not a SHA-256"),
        ({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 1, "lfs": []}] * 20_001}, "20000 are allowed"),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: object, complaint: str
) -> None:
    """The listing is a file of the hub here, so it may have any content."""
    (folder / "answer.json").write_bytes(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
    commit = hub.add("org/model", folder)
    url = f"{hub.endpoint}/org/model/resolve/{commit}/answer.json"
    monkeypatch.setattr(module.Remote, "url", property(lambda _: url))
    with pytest.raises(ModelInvalid, match=complaint):
        HubTree.open_repository(SOURCE)


def test_a_listing_has_an_end(hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/model", folder)
    monkeypatch.setattr(module, "MAX_LISTING", 100)
    with pytest.raises(ModelInvalid, match="cannot be read"):
        HubTree.open_repository(SOURCE)


LIBRARY = """
import sys
from pathlib import Path
from huggingface_hub import HfApi, snapshot_download
info = HfApi().model_info("org/model", files_metadata=True)
print(info.sha, {sibling.rfilename: sibling.size for sibling in info.siblings}["model.safetensors"])
print([entry.path for entry in HfApi().get_paths_info("org/model", ["config.json"])])
print([entry.size for entry in HfApi().list_repo_tree("org/model", recursive=True)][1:])
done = Path(snapshot_download("org/model", local_dir=sys.argv[1]))
print(len((done / "model.safetensors").read_bytes()), len((done / "text encoder" / "\u00fcn\u00ef.json").read_bytes()))
"""


def test_the_hub_of_these_tests_is_one_for_the_library_too(hub: LoopbackHub, folder: Path, tmp_path: Path) -> None:
    """The loopback hub also answers requests that only the library makes."""
    commit = hub.add("org/model", folder)
    environ = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", LIBRARY, str(tmp_path / "whole")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"{commit} {len(WEIGHTS)}",
        "['config.json']",
        f"[8, {len(WEIGHTS)}, 2]",
        f"{len(WEIGHTS)} 2",
    ]


def test_the_environment_says_where_the_hub_is_and_the_library_is_loaded_late(hub: LoopbackHub, folder: Path) -> None:
    commit = hub.add("org/model", folder)
    program = """
import sys
from services.models.hub.repository import HubTree
from services.models.hub.source import HubSource
assert "huggingface_hub" not in sys.modules
print(HubTree.open_repository(HubSource("org/model", "", "")).revision)
"""
    environ = {"HF_ENDPOINT": hub.endpoint + "/", "PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]}
    environ["HF_HOME"] = str(folder.parent)
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (commit + "\n", "")
