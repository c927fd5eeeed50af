"""The models that `allm serve` registers itself, over several starts with one home."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from allm.models.v1 import model_service_pb2, model_service_pb2_grpc

from services.cli.serve.register import unpack_demo
from services.models.demo import text_demo as module
from services.models.demo.copied_demo import ENCODER, RERANKER, SHAPES, WHISPER
from services.models.demo.text_demo import DEMO_ID, SAFETENSORS_DEMO_ID, DemoError, bundled_model, safetensors_demo
from tests.demo_model import demo_model, demo_safetensors
from tests.models.formats.handmade_models import write_pipeline
from tests.operator_side import Operator
from tests.stack import POLL_SECONDS, Stack, running_stack
from tests.whisper_weights import tiny_en_ct2, tiny_en_pt

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 60


def drawn_with(stack: Stack, model_id: str) -> tuple[int, float]:
    """Returns the steps and guidance with which a model was registered."""
    with grpc.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
        reply = model_service_pb2_grpc.ModelServiceStub(channel).GetModel(
            model_service_pb2.GetModelRequest(id=model_id), timeout=PATIENCE_SECONDS
        )
    return reply.model.image_defaults.steps, reply.model.image_defaults.guidance


@contextmanager
def serving(home: Path, models: str = "", aliases: str = "", **settings: str) -> Iterator[Stack]:
    """Runs a stack with these models, or none, until its start-up output is complete."""
    with running_stack(home, ALLM_MODELS=models, ALLM_ALIASES=aliases, **settings) as stack:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "Ctrl-C" not in said(stack):  # its last line
            assert time.monotonic() < deadline, stack.output()
            time.sleep(POLL_SECONDS)
        yield stack


def said(stack: Stack) -> str:
    """Returns the output so far."""
    return (stack.home / "output.txt").read_text()


def row(stack: Stack, model_id: str) -> str:
    """Returns the row of a model in the start-up table."""
    (found,) = [line for line in said(stack).splitlines() if f" {model_id} - " in line]
    return found


def registered(stack: Stack) -> dict[str, Any]:
    """Returns all models by id."""
    with urllib.request.urlopen(f"{stack.base_url}/models?state=all", timeout=PATIENCE_SECONDS) as reply:
        return {model["id"]: model for model in json.load(reply)["data"]}


def generation(stack: Stack, model_id: str) -> int:
    """Returns the generation of a model on its only replica."""
    (replica,) = registered(stack)[model_id]["replicas"]
    return int(replica["generation"])


def put(path: Path, source: Path) -> Path:
    """Links or copies a real model to `path`, replacing an existing file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        os.link(source, path)
    except OSError:
        shutil.copy(source, path)
    return path


def bundled() -> Path:
    source = bundled_model()
    assert source is not None
    return source


def test_models_of_the_settings_at_two_starts_of_one_home(tmp_path: Path) -> None:
    """A failed registration is reported, and the others continue. The format is detected from the files, even for
    models without a service.
    """
    own, home = tmp_path / "own", tmp_path / "home"
    good, first, second, third = (put(own / name / "m.gguf", demo_model()) for name in ("good", "a", "b", "c"))
    checkpoint, pipeline = put(own / "tiny.en.pt", tiny_en_pt()), write_pipeline(tmp_path / "pipeline")
    models = f"gone={own}/gone.gguf,good={good},moved={first},folder={demo_safetensors()}"
    heard = f"heard={tiny_en_ct2()},file={checkpoint},draws={pipeline}"
    formats = {"good": "gguf", "moved": "gguf", "folder": "safetensors"}
    formats |= {"heard": "whisper", "file": "whisper", "draws": "diffusers"}
    with serving(home, f"{models},{heard}", "x=nobody,nick=good,nick=good") as stack:
        assert f"gone was not registered: {own}/gone.gguf" in said(stack)
        assert "ALLM_ALIASES: x is not an alias of nobody: " in said(stack)
        assert "good - ready" in row(stack, "good")
        assert "folder - ready" in row(stack, "folder")
        assert "heard - unsupported (no audio service is running)" in row(stack, "heard")
        assert "draws - unsupported (no image service is running)" in row(stack, "draws")
        assert {name: model["format"] for name, model in registered(stack).items()} == formats, "and no demo"
        assert registered(stack)["good"]["aliases"] == ["nick"]
    with serving(home, f"good={good},moved={second},nick={third}", "nick=good") as stack:
        assert generation(stack, "good") == 1, "the same file is no new generation"
        assert f"moved: its source is now {second.as_uri()}, it was {first.as_uri()}" in said(stack)
        assert registered(stack)["moved"]["source"] == second.as_uri()
        assert "nick was not registered: " in said(stack)
        assert "alias of the model 'good'" in said(stack)
        assert set(registered(stack)) == set(formats)
        assert registered(stack)["good"]["source"] == good.as_uri(), "nothing is overwritten"
        assert registered(stack)["good"]["aliases"] == ["nick"]


def test_a_file_of_models_is_served_from_the_start_without_the_demo(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "models.yaml"
    path = put(home / "models" / "m.gguf", demo_model())
    file.write_text(f"models:\n- {{id: m, source: '{path.as_uri()}', format: gguf, aliases: [nick]}}\n")
    with serving(home, ALLM_MODELS_FILE=str(file), aliases="x=m") as stack:
        assert "m - ready" in row(stack, "m")
        assert "ALLM_ALIASES: x is not an alias of m: " in said(stack)
        assert f"declared in ALLM_MODELS_FILE: change {file} instead" in said(stack)
        assert set(registered(stack)) == {"m"}
        assert (registered(stack)["m"]["declared"], registered(stack)["m"]["aliases"]) == (True, ["nick"])


def test_models_stay_registered_and_a_changed_file_is_taken_at_the_next_start(tmp_path: Path) -> None:
    """A model that an operator registered and loaded is loaded again as soon as its file exists."""
    home, path = tmp_path / "home", put(tmp_path / "own" / "m.gguf", demo_model())
    kept, aside = put(tmp_path / "own" / "kept" / "kept.gguf", demo_model()), tmp_path / "aside"
    roots = {"ALLM_MODEL_ROOTS": str(tmp_path / "own")}
    with serving(home, f"m={path}", "nick=m", **roots) as stack:
        assert "m - ready" in row(stack, "m")
        operator = Operator(stack, tmp_path / "own")
        operator.taken("kept", kept, "gguf", aliases=["keep"])
        operator.verb("kept", "load")
        operator.until_state("kept", "loaded")
    put(path, bundled())
    kept.rename(aside)
    with serving(home, **roots) as stack:
        assert set(registered(stack)) == {"m", "kept"}, "neither forgotten, nor joined by the demo"
        assert "m - failed" in row(stack, "m")
        assert str(path) in registered(stack)["m"]["reason"]
        operator = Operator(stack, tmp_path / "own")
        assert "kept.gguf" in operator.until_state("kept", "failed")["reason"]
        aside.rename(kept)
        operator.until_state("kept", "loaded")  # keep_loaded has survived the restart
        assert "Paris" in operator.answer("keep")
        operator.verb("kept", "unload")
        operator.until_state("kept", "ready")
    with serving(home, f"m={path}", **roots) as stack:
        assert "m - ready (94 MiB" in row(stack, "m"), "what is shown is the new generation's state"
        assert generation(stack, "m") == 2
        assert registered(stack)["m"]["aliases"] == ["nick"]
        assert "no longer" not in said(stack)


def test_the_demo_is_installed_outside_the_roots_and_stays_removed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    put_demos(home)
    roots = {"ALLM_MODEL_ROOTS": str(tmp_path / "elsewhere")}
    demos = {DEMO_ID, ENCODER.id, RERANKER.id, SAFETENSORS_DEMO_ID, WHISPER.id, SHAPES.id}
    with serving(home, **roots, ALLM_AUDIO_REPLICAS="1", ALLM_IMAGE_REPLICAS="1") as stack:
        assert f"{DEMO_ID} - ready" in row(stack, DEMO_ID)
        assert f"{RERANKER.id} - ready" in row(stack, RERANKER.id)
        assert registered(stack)[RERANKER.id]["aliases"] == [RERANKER.alias]
        assert f"{WHISPER.id} - ready" in row(stack, WHISPER.id)
        assert registered(stack)[WHISPER.id]["aliases"] == [WHISPER.alias]
        assert f"{SHAPES.id} - ready" in row(stack, SHAPES.id)
        assert registered(stack)[SHAPES.id]["aliases"] == [SHAPES.alias]
        assert drawn_with(stack, SHAPES.id) == (20, 2.5), "what its card says"
        until_said(stack, f"{SAFETENSORS_DEMO_ID} - ready")
        assert "Ctrl-C" in said(stack).partition(SAFETENSORS_DEMO_ID)[0], "nobody waits for the second one"
        remove(stack, SAFETENSORS_DEMO_ID)
    with serving(home, **roots) as stack:
        assert set(registered(stack)) == demos - {SAFETENSORS_DEMO_ID}, "what an operator has removed stays away"
        assert generation(stack, DEMO_ID) == 1
        assert "no audio service is running" in row(stack, WHISPER.id)
    # Simulates a kill during the unpacking of the second demo model: the next start repeats it.
    folder = safetensors_demo(home / "models")
    folder.rename(folder.with_name("partial"))
    with serving(home, **roots) as stack:
        until_said(stack, f"preparing {SAFETENSORS_DEMO_ID} in the background")
        assert set(registered(stack)) == demos - {SAFETENSORS_DEMO_ID}


def put_demos(home: Path) -> None:
    """Creates the demo models that take long to make."""
    put(home / "models" / DEMO_ID / demo_model().name, demo_model())
    folder = safetensors_demo(home / "models")
    for file in demo_safetensors().iterdir():
        put(folder / file.name, file)


def until_said(stack: Stack, words: str) -> None:
    """Waits until the output contains `words`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while words not in said(stack):
        assert time.monotonic() < deadline, stack.output()
        time.sleep(POLL_SECONDS)


def remove(stack: Stack, model_id: str) -> None:
    """Removes a registered model."""
    request = urllib.request.Request(f"{stack.base_url}/models/{model_id}", method="DELETE")
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
        assert json.load(reply)["deleted"] is True


async def test_existing_files_are_used_without_a_message(tmp_path: Path) -> None:
    said: list[str] = []
    safetensors_demo(tmp_path).mkdir(parents=True)
    assert await unpack_demo(tmp_path, said.append) == safetensors_demo(tmp_path)
    assert said == []


async def test_without_the_extras_nothing_is_converted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "is_installed", lambda _: False)
    said: list[str] = []
    assert await unpack_demo(tmp_path, said.append) is None
    assert said == []


async def test_failures_give_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forged = tmp_path / "forged.gguf"
    forged.write_bytes(b"GGUF")
    monkeypatch.setattr(module, "bundled_model", lambda: forged)
    said: list[str] = []
    with pytest.raises(DemoError, match=f"cannot be made: {forged} is not the expected file"):
        await unpack_demo(tmp_path, said.append)
    assert len(said) == 1


async def test_a_stop_ends_the_work_and_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    folder = safetensors_demo(tmp_path)
    before = set(psutil.Process().children())
    task = asyncio.create_task(unpack_demo(tmp_path, lambda _: None))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not folder.with_name("partial").exists():
            assert not task.done()
            await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(psutil.Process().children()) == before
    assert not folder.exists()
