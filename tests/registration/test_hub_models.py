"""hf:// sources through the gateway: real weights from a loopback hub that produces each fault once."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from pathlib import Path

import pytest

from services.models.demo.text_demo import bundled_model
from tests.demo_model import demo_model
from tests.loopback_hub import LISTING, LoopbackHub
from tests.operator_side import Operator
from tests.registration.model_folders import safetensors_model, sharded_model

WEIGHTS = "demo.gguf"
HEADERS = 8 * 1024 * 1024  # bytes: the reads of a registration are smaller


def small_model(folder: Path) -> Path:
    """Writes the bundled model: 98 MB, quick to fetch, with poor answers."""
    source = bundled_model()
    assert source is not None
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, folder / WEIGHTS)
    (folder / "README.md").write_text("not needed to run it")
    return folder


def good_model(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(demo_model(), folder / WEIGHTS)
    return folder


@pytest.fixture(scope="session")
def commit(session_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Adds `org/small` to the hub; returns its commit."""
    return session_hub.add("org/small", small_model(tmp_path_factory.mktemp("hub") / "small"))


def fetched(operator: Operator) -> list[Path]:
    """Returns every published file under ALLM_MODELS_DIR."""
    top = operator.stack.home / "models"
    return [path for path in top.rglob("*") if path.is_file() and not path.relative_to(top).parts[0].startswith(".")]


def test_a_model_comes_from_the_hub_and_answers(operator: Operator, hub: LoopbackHub, tmp_path: Path) -> None:
    commit = hub.add("org/good", good_model(tmp_path / "good"))
    model = operator.taken("org/good", "hf://org/good#demo.gguf", "gguf")
    assert model["revision"] == commit
    assert model["size_bytes"] == str(demo_model().stat().st_size)
    operator.until_state("org/good", "ready")
    assert "Paris" in operator.answer("org/good")
    assert hub.asked(WEIGHTS, cdn=True), "large files were redirected"
    (path,) = [path for path in fetched(operator) if "good" in str(path)]
    with path.open("rb") as file, demo_model().open("rb") as original:
        assert hashlib.file_digest(file, "sha256").digest() == hashlib.file_digest(original, "sha256").digest()
    operator.delete("org/good")
    operator.until(lambda: not path.exists())


@pytest.mark.usefixtures("commit")
def test_no_weights_are_downloaded_to_register(operator: Operator, hub: LoopbackHub) -> None:
    gate = hub.gate(WEIGHTS, after_bytes=32 * 1024 * 1024)  # blocks a service's download, but not the read of a header
    hub.sent = 0
    operator.taken("m", "hf://org/small", "gguf")
    gate.wait_reached()
    shown = operator.until_state("m", "downloading")
    assert 0 <= shown["progress"]["done_bytes"] < shown["progress"]["total_bytes"] == bundled_size()
    assert "m" not in operator.ready()
    reply = operator.chat("m")
    assert (reply.status, reply.error["code"]) == (503, "model_not_ready"), reply
    assert reply.headers["retry-after"]
    assert "download" in reply.error["message"]
    assert not [path for path in fetched(operator) if path.name == WEIGHTS], "no half model is ever visible"
    gate.open()
    operator.until_state("m", "ready")
    assert not [request for request in hub.requests if request.file == "README.md"], "only what the manifest names"


def bundled_size() -> int:
    source = bundled_model()
    assert source is not None
    return source.stat().st_size


@pytest.mark.usefixtures("commit")
def test_a_connection_cut_in_the_middle_costs_only_the_rest(operator: Operator, hub: LoopbackHub) -> None:
    hub.cut(WEIGHTS, after_bytes=40_000_000, larger_than=HEADERS)
    operator.taken("m", "hf://org/small", "gguf")
    operator.until_state("m", "ready")
    parts = [request.range for request in hub.asked(WEIGHTS, cdn=True)]
    assert any(part.startswith("bytes=") and int(part[6:].split("-")[0]) > 0 for part in parts), parts
    assert hub.sent < 2 * bundled_size()


@pytest.mark.usefixtures("commit")
def test_a_wrong_hash_once_is_fetched_again(operator: Operator, hub: LoopbackHub) -> None:
    hub.corrupt(WEIGHTS, larger_than=HEADERS)
    operator.taken("m", "hf://org/small", "gguf")
    operator.until_state("m", "ready")
    assert hub.sent > 2 * bundled_size()


def test_a_wrong_hash_again_is_a_failure_by_name_and_an_update_recovers(
    operator: Operator, hub: LoopbackHub, tmp_path: Path
) -> None:
    folder = small_model(tmp_path / "damaged")
    hub.add("org/damaged", folder)
    with bundled_file() as file:
        expected = hashlib.file_digest(file, "sha256").hexdigest()
    hub.corrupt(WEIGHTS, times=-1, larger_than=HEADERS)
    operator.taken("m", "hf://org/damaged", "gguf")
    shown = operator.until_state("m", "failed", "ready")
    assert shown["state"] == "failed"
    assert WEIGHTS in shown["reason"]
    assert expected in shown["reason"]
    assert "m" not in operator.ready()
    assert not [path for path in fetched(operator) if path.parent.parent.name == "m"]
    reply = operator.chat("m")
    assert (reply.status, reply.error["code"]) == (400, "model_invalid"), reply
    hub.heal()
    hub.add("org/damaged", folder)
    operator.verb("m", "update")
    operator.until_state("m", "ready")
    assert operator.all()["m"]["replicas"][0]["generation"] == 2


def bundled_file():
    source = bundled_model()
    assert source is not None
    return source.open("rb")


@pytest.mark.usefixtures("commit")
def test_a_busy_hub_is_waited_for(operator: Operator, hub: LoopbackHub) -> None:
    hub.cut(WEIGHTS, after_bytes=50_000_000, larger_than=HEADERS)
    gate = hub.gate(WEIGHTS, after_bytes=40_000_000)
    operator.taken("m", "hf://org/small", "gguf")
    gate.wait_reached()
    hub.status(WEIGHTS, 429, headers={"retry-after": "1"})
    gate.open()
    operator.until_state("m", "ready")
    assert len(hub.asked(WEIGHTS, cdn=True)) >= 2


def test_hub_errors_at_registration_reach_the_operator(operator: Operator, hub: LoopbackHub) -> None:
    message = operator.refused("m", "hf://org/nothing", "gguf")
    assert "org/nothing" in message
    message = operator.refused("m", "hf://org/small@no-such-branch", "gguf")
    assert "no-such-branch" in message
    message = operator.refused("m", "hf://org/small#other.gguf", "gguf")
    assert "other.gguf" in message
    hub.status(LISTING, 429, times=-1, headers={"retry-after": "7"})
    reply = operator.register("m", "hf://org/small", "gguf")
    assert (reply.status, reply.headers["retry-after"], reply.error["code"]) == (429, "7", "overloaded")
    hub.heal()
    hub.status(LISTING, 500, times=-1)
    reply = operator.register("m", "hf://org/small", "gguf")
    assert reply.status == 503, reply
    assert hub.endpoint.removeprefix("http://") in reply.error["message"]
    assert "m" not in operator.all()


def test_remote_safetensors_are_checked_by_their_headers(operator: Operator, hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("org/sharded", sharded_model(tmp_path / "sharded"))
    operator.taken("whole", "hf://org/sharded", "safetensors")
    assert operator.until_state("whole", "unsupported")
    folder = sharded_model(tmp_path / "broken")
    (folder / "model-00002-of-00002.safetensors").unlink()
    hub.add("org/broken", folder)
    assert "model-00002-of-00002.safetensors" in operator.refused("broken", "hf://org/broken", "safetensors")
    folder = safetensors_model(tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    hub.add("org/bare", folder)
    assert "tokenizer.json" in operator.refused("bare", "hf://org/bare", "safetensors")


def test_model_that_cannot_run_here_is_not_downloaded(operator: Operator, hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("org/st", safetensors_model(tmp_path / "st"))
    operator.taken("m", "hf://org/st", "safetensors")
    operator.until_state("m", "unsupported")
    operator.until(lambda: operator.all()["m"]["replicas"])
    assert not [path for path in fetched(operator) if path.name == "model.safetensors"]


@pytest.mark.slow
def test_a_new_generation_is_fetched_while_the_old_one_serves(
    operator: Operator, hub: LoopbackHub, tmp_path: Path
) -> None:
    first = hub.add("org/moving", good_model(tmp_path / "one"))
    operator.taken("moving", "hf://org/moving", "gguf")
    operator.until_state("moving", "ready")
    assert "Paris" in operator.answer("moving")
    operator.until_state("moving", "loaded")
    (old,) = [path for path in fetched(operator) if path.parent.parent.name.startswith("moving")]
    folder = small_model(tmp_path / "two")
    second = hub.add("org/moving", folder)
    gate = hub.gate(WEIGHTS, after_bytes=32 * 1024 * 1024)
    model = operator.verb("moving", "update").model
    assert (model["generation"], model["revision"]) == ("2", second)
    gate.wait_reached()
    shown = operator.all()["moving"]
    assert shown["state"] == "loaded", "the old one serves on"
    assert shown["replicas"][0]["generation"] == 1
    assert "Paris" in operator.answer("moving")
    assert old.exists()
    gate.open()
    operator.until(lambda: operator.all()["moving"]["replicas"][0]["generation"] == 2)
    operator.until_state("moving", "loaded")  # a loaded model stays loaded
    assert operator.chat("moving").status == 200
    operator.until(lambda: not old.exists())
    assert first != second


@pytest.mark.usefixtures("commit")
def test_a_service_that_is_killed_while_it_downloads_goes_on_where_it_was(operator: Operator, hub: LoopbackHub) -> None:
    gate = hub.gate(WEIGHTS, after_bytes=60_000_000)
    operator.taken("m", "hf://org/small", "gguf")
    gate.wait_reached()
    pid = operator.stack.note["children"]["text"]
    hub.requests.clear()
    os.kill(pid, signal.SIGKILL)
    gate.open()
    operator.until(lambda: operator.stack.note["children"]["text"] != pid)
    operator.until_state("m", "ready")
    (request, *_) = hub.asked(WEIGHTS, cdn=True)
    assert int(request.range.removeprefix("bytes=").split("-")[0]) > 0
