"""Compares the memory reserved for each demo model with the memory that its worker takes under load.

    python -m bench.needs [--rounds 3] [MODEL...]

Admission reserves what the formulas of `services/*/memory_estimate.py` compute. The bench loads each demo model,
fills its batches with a load and unloads it, several times. It reports the largest peak of the workers, because heap
gaps make the peaks differ by a quarter. It measures a worker that has only imported its runtime separately.
tests/memory compares the two as well, but only to a factor: how requests meet in a batch, and so the peak, differs
between machines.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

import httpx
import msgspec
import psutil
import typer
from rich.console import Console

from bench.audio_material import of_tests
from bench.contender import BUILD_DIR
from bench.process import Launch, free_port, running
from bench.results_folder import save
from services.audio import memory_estimate as audio_estimate
from services.audio.manager import AudioManager
from services.image import memory_estimate as image_estimate
from services.image.manager import ImageManager
from services.models.descriptor import Format, describe
from services.models.formats.inspect import inspect
from services.models.hub.source import LocalTree
from services.models.runtime_choice import EngineRegistry
from services.residency.memory.memory_estimate import MemoryEstimate
from services.settings.modality_settings import MIB
from services.settings.settings import Settings, load_settings
from services.text import memory_estimate as text_estimate
from services.text.manager import TextManager

T = TypeVar("T")

SECONDS = 300.0
SHAPES = Path(__file__).parents[1] / "training" / "shapes_sd" / "weights"
ROUNDS = 3
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


@dataclass(frozen=True, slots=True)
class Serving:
    """A running `allm serve`."""

    url: str
    pid: int
    environment: dict[str, str]
    idle: dict[tuple[str, ...], int] = field(default_factory=dict)  # by the modules that the worker imported

    def post(self, path: str, **content: object) -> None:
        """Sends a request and waits for its answer; raises HTTPStatusError on an error status."""
        sent = {"data": content["form"], "files": content["files"]} if "form" in content else {"json": content}
        httpx.post(f"{self.url}/v1/{path}", timeout=SECONDS, **sent).raise_for_status()

    def workers(self) -> set[int]:
        """Returns the process ids of the workers."""
        return {
            process.pid
            for process in psutil.Process(self.pid).children(recursive=True)
            if any(part.endswith(".engine") for part in process.cmdline())
        }

    def unload(self, model: str) -> None:
        """Stops the worker of a model."""
        command = [sys.executable, "-m", "services.cli", "models", "unload", model]
        subprocess.run(command, env=self.environment, capture_output=True, check=True, timeout=SECONDS)


def chat(serving: Serving, model: str) -> None:
    """Fills steps with prompts and part of the cache, whose memory is taken when it is written; decodes several
    requests at a time.
    """

    def ask(number: int) -> None:
        words = f"{number} " + "word " * 1200
        messages = [{"role": "user", "content": words}]
        serving.post("chat/completions", model=model, messages=messages, max_tokens=4)

    together(ask, range(4))


def embed(serving: Serving, model: str) -> None:
    """Embeds many long inputs of every other word of the vocabulary, so that the model reads its whole file: a page
    holds more than two words."""
    known = json.loads((CASES()[model].path / "tokenizer.json").read_text())["model"]["vocab"]
    words = [word for word in known if word.isalnum()][::2]
    inputs = [" ".join(words[first : first + 240]) for first in range(0, len(words), 240)]
    together(lambda number: serving.post("embeddings", model=model, input=inputs[number::3]), range(3))


def transcribe(serving: Serving, model: str) -> None:
    """Transcribes more windows than a batch holds."""

    def ask(path: Path) -> None:
        form = {"model": model, "response_format": "verbose_json", "timestamp_granularities[]": "word"}
        serving.post("audio/transcriptions", form=form, files={"file": (path.name, path.read_bytes())})

    together(ask, [clip.path for clip in of_tests("speech").prompts()])


def draw(serving: Serving, model: str) -> None:
    """Generates enough full batches that the peak stops growing; the order of the batches varies."""
    for _ in range(3):
        together(lambda _: serving.post("images/generations", model=model, prompt="a circle", n=8, steps=1), range(4))


def together(ask: Callable[[T], None], each: Iterable[T]) -> None:
    """Calls `ask` for all items in parallel."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, each))


@dataclass(frozen=True, slots=True)
class Case:
    """A demo model: its files, its load, and the modules that its idle worker imports."""

    path: Path
    format: Format
    runtime: str
    use: Callable[[Serving, str], None]
    imports: str


@cache
def CASES() -> dict[str, Case]:  # noqa: N802 (in effect a constant, but its weights are made on demand)
    """Returns the demo models by id."""
    demo = of_tests("demo_model")
    llama, torch = (f"services.text.engine.runtimes.{name}" for name in ("llama_cpp", "torch.engine"))
    whisper = "services.audio.engine.runtimes.faster_whisper"
    diffusers = "services.image.engine.runtimes.diffusers.engine"
    return {
        "gguf": Case(demo.demo_model(), "gguf", "llama_cpp", chat, llama),
        "safetensors": Case(demo.demo_safetensors(), "safetensors", "torch", chat, torch),
        "encoder": Case(of_tests("minilm").minilm(), "safetensors", "torch", embed, torch),
        "whisper": Case(of_tests("whisper_weights").tiny_en_ct2(), "whisper", "faster_whisper", transcribe, whisper),
        "shapes": Case(SHAPES, "diffusers", "diffusers", draw, diffusers),
    }


def models_setting() -> str:
    """Returns ALLM_MODELS for a stack with all demo models."""
    return ",".join(f"{name}={case.path}" for name, case in CASES().items())


@dataclass(frozen=True, slots=True)
class Figures:
    """The memory figures of a model, in bytes."""

    need: MemoryEstimate
    peak: int  # the largest peak of a worker under load
    idle: int  # the peak of a worker that has only imported its runtime

    @property
    def worker(self) -> int:
        """The reservation for an idle worker."""
        return self.need.parts["worker"]

    @property
    def said(self) -> int:
        """The reservation for the model above an idle worker."""
        return self.need.total - self.worker - self.need.parts.get("templates", 0)  # templates: a separate process

    @property
    def above(self) -> int:
        """The measured memory of the model above an idle worker."""
        return self.peak - self.idle


def measured(model: str, serving: Serving, rounds: int = 1) -> Figures:
    """Returns a demo model's estimate and the measured memory of its workers."""
    case = CASES()[model]
    runtime = (f"{case.imports.partition('.runtimes')[0]}.__main__", case.imports)
    if runtime not in serving.idle:
        serving.idle[runtime] = _idle(serving.environment, runtime)
    need = needed(model, case, load_settings(serving.environment))
    return Figures(need, max(_used(model, case, serving) for _ in range(rounds)), serving.idle[runtime])


def needed(model: str, case: Case, settings: Settings) -> MemoryEstimate:
    """Returns the estimate that the model's service computes. Raises ValueError on an unexpected runtime."""
    folder, file = (case.path, "") if case.path.is_dir() else (case.path.parent, case.path.name)
    tree = LocalTree(folder, [folder])
    finding = inspect(tree, case.format, file)
    manifest, facts = finding.manifest(tree), finding.facts(model)
    descriptor, runtime = describe(facts, 1, manifest, folder), EngineRegistry("cpu", forced=True).resolve(facts)
    if runtime.name != case.runtime:
        raise ValueError(f"{model} runs on {runtime.name}, and not on {case.runtime}")
    if facts.modality == "text":
        manager = TextManager(settings.text)
        return text_estimate.TextMemoryEstimate(settings.text, manager.options)(descriptor, runtime)
    if facts.modality == "audio":
        whisper = AudioManager(settings.audio)
        return audio_estimate.AudioMemoryEstimate(settings.audio, whisper.options)(descriptor, runtime)
    return image_estimate.ImageMemoryEstimate(ImageManager(settings.image).options)(descriptor, runtime)


def _used(model: str, case: Case, serving: Serving) -> int:
    """Returns the peak of a worker under load; unloads the worker."""
    before = serving.workers()
    case.use(serving, model)
    (pid,) = serving.workers() - before
    (found,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    worker = psutil.Process(pid)
    serving.unload(model)
    with suppress(psutil.NoSuchProcess):
        worker.wait(SECONDS)
    return int(found) * 1024


def _idle(environment: dict[str, str], modules: tuple[str, ...]) -> int:
    """Returns the bytes of a worker that has only imported its runtime."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE, *modules],
        env={**environment, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    )
    return int(re.findall(r"\d+", done.stdout)[-1]) * 1024


def table(figures: dict[str, Figures]) -> str:
    """Formats the figures as a Markdown table, in MiB."""
    lines = ["| model | said | took | took/said | idle worker, said | took | need |", "|---|---|---|---|---|---|---|"]
    for model, each in figures.items():
        numbers = [each.said / MIB, each.above / MIB, each.worker / MIB, each.idle / MIB]
        said, took, worker, idle = (f"{number:.0f}" for number in numbers)
        lines.append(f"| {model} | {said} | {took} | {each.above / each.said:.2f} | {worker} | {idle} | {each.need} |")
    return "\n".join(lines) + "\n"


def main(
    models: Annotated[list[str] | None, typer.Argument(help="Demo models; all without it.")] = None,
    rounds: Annotated[int, typer.Option(help="Workers of each model, of which the largest counts.")] = ROUNDS,
) -> None:
    """Measures the demo models one after another."""
    port = free_port()
    settings = {
        "ALLM_PORT": str(port),
        "ALLM_METRICS_PORT": "0",
        "ALLM_HOME": str(BUILD_DIR / "home-needs"),
        "ALLM_MODELS": models_setting(),
        "ALLM_AUDIO_REPLICAS": "1",
        "ALLM_IMAGE_REPLICAS": "1",
    }
    log = BUILD_DIR / "logs" / "allm-needs.log"
    launch = Launch("allm", [sys.executable, "-m", "services.cli", "serve"], port, "/healthz", log, settings)
    with running(launch) as started:
        serving = Serving(started.url, started.pid, {**os.environ, **settings})
        figures = {model: measured(model, serving, rounds) for model in models or CASES()}
    text = table(figures)
    Console().print(text, markup=False, soft_wrap=True)
    if models is None:
        save(
            "needs", f"# Needs\n\n`python -m bench.needs`, in MiB.\n\n{text}", {"figures": msgspec.to_builtins(figures)}
        )


if __name__ == "__main__":
    typer.run(main)
