"""What models are said to need, against what their workers take under load: the demo models on the real stack."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import psutil
import pytest
from demo_model import demo_model, demo_safetensors
from minilm import ENCODER, minilm
from speech import prompts
from stack import MODEL, Stack, environment, running_stack
from whisper_weights import tiny_en_ct2

from services.audio import need as audio_need
from services.audio.whisper_manager import WhisperManager
from services.image import need as image_need
from services.image.sd_manager import SDManager
from services.models.descriptor import Format, describe
from services.models.inspection.inspect import inspect
from services.models.registry import EngineRegistry
from services.models.tree import LocalTree
from services.residency.need import Need
from services.rpc.settings import MIB, Settings, load_settings
from services.text import need as text_need
from services.text.manager import TextManager

T = TypeVar("T")

SECONDS = 300.0
TOLERANCE = 0.15  # of the peak above an idle worker
IDLE_TOLERANCE = 0.25  # of that worker, whose libraries differ from machine to machine
SHAPES = Path(__file__).parents[2] / "shapes_sd" / "weights"
PROBE = """
import importlib, re, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
if "diffusers" in sys.modules:  # imports its classes when they are first asked for
    from diffusers import AutoencoderKL, AutoPipelineForImage2Image, AutoPipelineForInpainting
    from diffusers import AutoPipelineForText2Image, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextModel, CLIPTokenizer
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from Linux' /proc"),
]


def chat(stack: Stack, model: str) -> None:
    """Fills a step with prompts, and decodes several requests at a time."""

    def ask(number: int) -> None:
        words = f"{number} " + "word " * 400
        body = {"model": model, "messages": [{"role": "user", "content": words}], "max_tokens": 4}
        httpx.post(f"{stack.base_url}/chat/completions", json=body, timeout=SECONDS).raise_for_status()

    together(ask, range(8))


def embed(stack: Stack, model: str) -> None:
    """Long inputs, many at a time, of all words that the model knows: others would never be read from its file."""
    known = json.loads((minilm() / "tokenizer.json").read_text())["model"]["vocab"]
    words = [word for word in known if word.isalnum()]
    inputs = [" ".join(words[first : first + 240]) for first in range(0, len(words), 240)]

    def ask(number: int) -> None:
        body = {"model": model, "input": inputs[number::3]}
        httpx.post(f"{stack.base_url}/embeddings", json=body, timeout=SECONDS).raise_for_status()

    together(ask, [*range(3), *range(3)])


def transcribe(stack: Stack, model: str) -> None:
    """More windows than a batch has."""

    def ask(path: Path) -> None:
        form = {"model": model, "response_format": "verbose_json", "timestamp_granularities[]": "word"}
        files = {"file": (path.name, path.read_bytes())}
        url = f"{stack.base_url}/audio/transcriptions"
        httpx.post(url, data=form, files=files, timeout=SECONDS).raise_for_status()

    together(ask, [clip.path for clip in prompts()])


def draw(stack: Stack, model: str) -> None:
    """Full batches, so many that the peak grows no more: how they follow each other differs."""

    def ask(_: int) -> None:
        body = {"model": model, "prompt": "a red circle", "n": 8, "steps": 4}
        httpx.post(f"{stack.base_url}/images/generations", json=body, timeout=SECONDS).raise_for_status()

    for _ in range(3):
        together(ask, range(4))


def together(ask: Callable[[T], None], each: Iterable[T]) -> None:
    """All at the same time."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, each))


@dataclass(frozen=True)
class Case:
    """A demo model: what it is loaded from, under load by what, and what an idle worker of it imports."""

    id: str
    path: Path
    format: Format
    runtime: str
    use: Callable[[Stack, str], None]
    imports: str
    workers: int = 1  # of which the largest counts: gaps of the heap make them differ


CASES = {
    case.id: case
    for case in (
        Case(MODEL, demo_model(), "gguf", "llama_cpp", chat, "services.text.engine.runtimes.llama_cpp"),
        Case("st", demo_safetensors(), "safetensors", "torch", chat, "services.text.engine.runtimes.torch.engine"),
        Case(ENCODER, minilm(), "safetensors", "torch", embed, "services.text.engine.runtimes.torch.engine"),
        Case(
            "whisper",
            tiny_en_ct2(),
            "whisper",
            "faster_whisper",
            transcribe,
            "services.audio.engine.runtimes.faster_whisper",
        ),
        Case("shapes", SHAPES, "diffusers", "diffusers", draw, "services.image.engine.runtimes.diffusers.engine", 3),
    )
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All services, with all demo models."""
    models = ",".join(f"{case.id}={case.path}" for case in CASES.values())
    replicas = {"ALLM_AUDIO_REPLICAS": "1", "ALLM_IMAGE_REPLICAS": "1"}
    with running_stack(tmp_path_factory.mktemp("needs") / "home", ALLM_MODELS=models, **replicas) as stack:
        yield stack


def needed(case: Case, settings: Settings) -> Need:
    """What the service that serves it reckons."""
    folder, file = (case.path, "") if case.path.is_dir() else (case.path.parent, case.path.name)
    tree = LocalTree(folder, [folder])
    finding = inspect(tree, case.format, file)
    manifest, facts = finding.manifest(tree), finding.facts(case.id)
    descriptor, runtime = describe(facts, 1, manifest, folder), EngineRegistry("cpu", forced=True).resolve(facts)
    assert runtime.name == case.runtime
    if facts.modality == "text":
        manager = TextManager(settings.text, "cpu")
        return text_need.TextNeed(settings.text, "cpu", manager.options)(descriptor, runtime)
    if facts.modality == "audio":
        whisper = WhisperManager(settings.audio, "cpu")
        return audio_need.AudioNeed(settings.audio, "cpu", whisper.options)(descriptor, runtime)
    return image_need.ImageNeed(SDManager(settings.image, "cpu").options)(descriptor, runtime)


def workers(stack: Stack) -> set[int]:
    """Process ids of loaded models."""
    return {
        process.pid
        for process in psutil.Process(stack.process.pid).children(recursive=True)
        if any(part.endswith(".engine") for part in process.cmdline())
    }


def peak(pid: int) -> int:
    """The most bytes that a process has held so far."""
    (found,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found) * 1024


def used(stack: Stack, case: Case) -> int:
    """The peak of a worker under load, which is then unloaded."""
    before = workers(stack)
    case.use(stack, case.id)
    (pid,) = workers(stack) - before
    measured = peak(pid)
    unload = [sys.executable, "-m", "services.cli", "models", "unload", case.id]
    subprocess.run(unload, env=environment(stack.home), capture_output=True, check=True, timeout=SECONDS)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(SECONDS)
    return measured


def idle(home: Path, *modules: str) -> int:
    """Bytes of a worker that has only imported its runtime."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE, *modules],
        env=environment(home, GLIBC_TUNABLES="glibc.malloc.hugetlb=1"),
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    )
    return int(re.findall(r"\d+", done.stdout)[-1]) * 1024


@pytest.mark.parametrize("model", sorted(CASES))
def test_a_model_takes_what_it_is_said_to_need(demo: Stack, model: str) -> None:
    case = CASES[model]
    settings = load_settings(environment(demo.home))
    need = needed(case, settings)
    measured = max(used(demo, case) for _ in range(case.workers))
    bare = idle(demo.home, f"{case.imports.partition('.runtimes')[0]}.__main__", case.imports)
    worker = need.parts["worker"]
    above = measured - bare
    said = need.total - worker - need.parts.get("templates", 0)  # a process beside the worker
    figures = f"needs {said / MIB:.0f} MiB, took {above / MIB:.0f} above an idle worker of {bare / MIB:.0f}: {need}"
    assert abs(said - above) <= TOLERANCE * above, figures
    assert abs(worker - bare) <= IDLE_TOLERANCE * bare, figures
