"""The same inspections through a loopback hub: the same findings, and no weights are transferred."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.errors import AllmError, ModelInvalid
from services.models.formats.inspect import inspect
from services.models.hub.repository import HubTree
from services.models.hub.source import HubSource
from tests.loopback_hub import LoopbackHub, hub_of_this_process
from tests.models.formats.handmade_models import (
    checkpoint,
    checkpoint_pickle,
    local,
    safetensors,
    write_ctranslate2,
    write_pipeline,
    write_shards,
    write_split,
    write_text_model,
    write_whisper,
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with hub_of_this_process(monkeypatch) as running:
        yield running


def served(hub: LoopbackHub, folder: Path) -> HubTree:
    hub.add("org/model", folder)
    tree = HubTree.open_repository(HubSource("org/model", "", ""))
    hub.requests.clear()
    return tree


def write_checkpoint(folder: Path) -> None:
    (folder / "tiny.pt").write_bytes(checkpoint(members={"archive/data/1": bytes(5_000_000)}))


@pytest.mark.parametrize(
    ("format", "write"),
    [
        ("gguf", write_split),
        ("safetensors", write_text_model),
        ("whisper", write_whisper),
        ("whisper", write_ctranslate2),
        ("whisper", write_checkpoint),
        ("diffusers", write_pipeline),
    ],
)
def test_the_finding_is_that_of_the_folder(
    tmp_path: Path, hub: LoopbackHub, format: Any, write: Callable[[Path], object]
) -> None:
    write(tmp_path)
    far, near = inspect(served(hub, tmp_path), format), inspect(local(tmp_path), format)
    assert [(file.path, file.size) for file in far.files] == [(file.path, file.size) for file in near.files]
    assert dataclasses.replace(far, files=()) == dataclasses.replace(near, files=())
    assert any(file.sha256 for file in far.files), "the hub knows the hashes of large files"
    assert not hub.asked("metadata.json")


def test_only_the_headers_of_many_shards_are_transferred(tmp_path: Path, hub: LoopbackHub) -> None:
    write_text_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    shards = write_shards(tmp_path, 20)
    for shard in shards:
        tensors = {f"{shard}.a": ("U8", [2_000_000]), f"{shard}.b": ("U8", [1])}
        (tmp_path / shard).write_bytes(safetensors(tensors))
    inspect(served(hub, tmp_path), "safetensors")
    assert {len(hub.asked(shard, cdn=True)) for shard in shards} == {1}
    assert not hub.asked("tokenizer.json"), "that it is there is in the listing"


@pytest.mark.parametrize(
    ("pickled", "words"),
    [(checkpoint_pickle(extra=b"cos\nsystem\n"), "os.system"), (b"no", "data.pkl in it is not a pickle")],
)
def test_a_checkpoint_that_is_refused(tmp_path: Path, hub: LoopbackHub, pickled: bytes, words: str) -> None:
    (tmp_path / "tiny.pt").write_bytes(checkpoint(pickled))
    with pytest.raises(ModelInvalid, match=words):
        inspect(served(hub, tmp_path), "whisper")


@pytest.mark.parametrize("path", ["config.json", "model.safetensors"])
def test_file_refused_by_the_hub_is_reported_with_the_cause(tmp_path: Path, hub: LoopbackHub, path: str) -> None:
    tree = served(hub, write_text_model(tmp_path))
    hub.status(path, 404, times=100)
    with pytest.raises(AllmError, match=path.replace(".", r"\.")):
        inspect(tree, "safetensors")
