"""Fetches published models one after the other, tests each on every runtime of its format, and records the results."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from allm.models.v1 import machine_service_pb2, model_pb2, model_service_pb2

from services.byte_count import bytes_word
from services.cli.models.catalog import Session
from services.cli.models.connection import Connection, Lost
from services.cli.models.progress import served, wait_until
from services.cli.problem import Interrupted, Problem
from services.cli.top import samples
from services.cli.verify.check import CheckOutcome, file_name, record, write
from services.cli.verify.suite import chosen, verify
from services.models.descriptor import Format
from services.models.runtimes import CPU, RUNTIMES
from services.provision.fetch import MARGIN
from services.residency.memory.memory_estimate import HOST, share_of

NO_ROOM = re.compile(r" needs .+; ")  # services/residency/memory/admission.py, of a model that does not fit


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome for one model on one runtime. Only `passed` means that it was tested and is right."""

    published: Published
    runtime: str
    verdict: Literal["passed", "failed", "not run"]
    detail: str

    def document(self) -> dict[str, str]:
        """Returns it as JSON."""
        names = {"family": self.published.family, "source": self.published.source, "format": self.published.format}
        return {**names, "runtime": self.runtime, "result": self.verdict, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRun:
    """A run. `into`: the folder of the records; `local`: whether models are fetched to this machine's disk."""

    at: Session
    into: Path
    say: Callable[[str], None]
    names: Sequence[str] = ()  # of checks; empty: all
    keep: bool = False  # leaves the models registered
    again: bool = False  # also those that have passed according to their record
    local: bool = True

    def results(self, models: Sequence[Published]) -> Iterator[Result]:
        """Yields a result for each model and runtime.

        Raises:
            Problem: the folder cannot be written to, there is no such check, or allm stopped answering. The model then
                stays registered, so that the next run continues where this one ended.
        """
        chosen(self.names)
        with suppress(FileExistsError):
            self.into.mkdir(parents=True)
        for published in models:
            left = [name for name in _runtimes(published) if not self._has_passed(published, name)]
            for name in _runtimes(published):
                if name not in left:
                    yield Result(published, name, "passed", "recorded by an earlier run")
            if left:
                yield from self._test(published, left)

    def _test(self, published: Published, runtimes: list[str]) -> Iterator[Result]:
        self.say(f"{published.source}: registering")
        try:
            model = self._register(published)
        except Lost:
            raise
        except Problem as problem:
            for name in runtimes:
                yield Result(published, name, "not run", str(problem))
            return
        try:
            yield from self._test_registered(published, model, runtimes)
        except (Lost, Interrupted, KeyboardInterrupt, GeneratorExit):
            self.say(f"{model.id} stays: the same command continues, `allm models remove {model.id}` removes it")
            raise
        except BaseException:
            self._remove(model)
            raise
        self._remove(model)

    def _register(self, published: Published) -> model_pb2.Model:
        """Registers the model, or returns the registration that an interrupted run has left."""
        catalog = self.at.catalog
        known = next((each for each in catalog.models().models if each.id == published.id), None)
        if known is None:
            return catalog.register(
                model_service_pb2.RegisterModelRequest(
                    id=published.id, source=published.source, format=published.format
                )
            )
        if known.source != published.source:
            raise Problem(f"the id {published.id} belongs to another model: {known.source}")
        return known

    def _remove(self, model: model_pb2.Model) -> None:
        if not self.keep:
            self.at.catalog.remove(model.id)

    def _test_registered(self, published: Published, model: model_pb2.Model, runtimes: list[str]) -> Iterator[Result]:
        explained = self.at.catalog.explain(model.id)
        able = []
        for name in runtimes:
            if why := _objection(explained, name) or self._lack_of_room(model, explained, name):
                yield Result(published, name, "not run", why)
            else:
                able.append(name)
        if not able:
            return
        self.say(f"{published.source}: {bytes_word(model.size_bytes)}")
        _, reached = wait_until(self.at.catalog, model, served(model.generation))
        for name in able:
            if not reached.serving:
                yield Result(published, name, "not run", f"{reached.state}: {reached.reason}")
                continue
            subject, outcomes = verify(self.at.connection, model.id, self.say, runtime=name, names=self.names)
            if outcomes[0].verdict == "failed" and NO_ROOM.search(outcomes[0].seen):
                yield Result(published, name, "not run", outcomes[0].seen)
                continue
            document = record(subject, outcomes)
            write(document, self.into / file_name(document))
            yield Result(published, name, "passed" if document["passed"] else "failed", _counts(outcomes))

    def _lack_of_room(
        self, model: model_pb2.Model, explained: model_service_pb2.ExplainModelResponse, runtime: str
    ) -> str:
        """Returns why the disk or the memory cannot hold a model; empty if they can, or are not known."""
        if self.local and not any(each.done_bytes for each in model.replicas):
            folder = self.at.settings.model.folder
            free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
            if model.size_bytes + MARGIN > free:
                needed = bytes_word(model.size_bytes + MARGIN)
                return f"needs {needed} in {folder}; {bytes_word(free)} are free"
        places = [(at.device, each) for at in explained.resolutions for each in at.runtimes]
        device = next((each.device or device for device, each in places if each.runtime == runtime), "")
        sample = _sample(self.at.connection)
        return lack_of_memory(model, device, sample) if sample else ""

    def _has_passed(self, published: Published, runtime: str) -> bool:
        """Reports whether a record of this model and runtime has passed all the checks."""
        if self.again:
            return False
        needed = {check.name for check in chosen(self.names)}
        return any(
            (found["model"], found["runtime"], found["passed"]) == (published.id, runtime, True)
            and needed <= {check["name"] for check in found["checks"]}
            for found in _records(self.into)
        )


def lack_of_memory(model: model_pb2.Model, device: str, sample: machine_service_pb2.MachineSample) -> str:
    """Returns why no host, or no GPU for a `device` that is one, can hold the weights; empty if one can."""
    on_host = device in (CPU, "mps")
    weights = max(model.size_bytes, model.unpacked_bytes) if on_host else model.size_bytes
    places = [
        total * share_of(place, host.threshold_share)
        for host in sample.hosts
        for place, total in (
            [(HOST, host.total_bytes)] if on_host else [(each.name, each.total_bytes) for each in host.devices]
        )
    ]
    if not places or weights <= max(places):
        return ""
    where = "the memory" if on_host else f"the memory of the GPU ({device})"
    return f"its weights take {bytes_word(weights)}; of {where} {bytes_word(max(places))} may be used"


def _runtimes(published: Published) -> list[str]:
    return [each.name for each in RUNTIMES if each.modality == "text" and published.format in each.formats]


def _objection(explained: model_service_pb2.ExplainModelResponse, runtime: str) -> str:
    """Returns why no replica can run the model with the runtime; empty if one can."""
    verdicts = [each for at in explained.resolutions for each in at.runtimes if each.runtime == runtime]
    if any(each.able for each in verdicts):
        return ""
    return verdicts[0].reason if verdicts else f"no text service has the runtime {runtime}"


def _sample(connection: Connection) -> machine_service_pb2.MachineSample | None:
    with suppress(Problem), closing(samples(connection)) as found:
        return next(found)[0]
    return None


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the records in a folder. Ignores other files, and records that were cut off."""
    for path in sorted(folder.iterdir()):
        with suppress(OSError, ValueError):
            found = json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else None
            if isinstance(found, dict) and {"model", "runtime", "passed", "checks"} <= found.keys():
                yield found


def _counts(outcomes: Sequence[CheckOutcome]) -> str:
    failed = [f"{each.name} failed: {each.seen}" for each in outcomes if each.verdict == "failed"]
    passed = sum(each.verdict == "passed" for each in outcomes)
    return "; ".join(failed) or f"{passed} checks passed, {len(outcomes) - passed} skipped"


PREFIX = "verify/"  # the beginning of the ids under which they are registered


@dataclass(frozen=True, slots=True)
class Published:
    """A published model. `file`: its path in the repository; empty: the whole repository."""

    family: str
    repository: str
    format: Format
    file: str = ""

    @property
    def id(self) -> str:
        """The id under which it is registered for the checks."""
        return PREFIX + self.repository.partition("/")[2]

    @property
    def source(self) -> str:
        """Its source, as in `allm models add`."""
        return f"hf://{self.repository}" + (f"#{self.file}" if self.file else "")


PUBLISHED = (
    Published("gpt-oss", "openai/gpt-oss-20b", "safetensors"),
    Published("gpt-oss", "ggml-org/gpt-oss-20b-GGUF", "gguf", "gpt-oss-20b-mxfp4.gguf"),
    Published("Qwen", "Qwen/Qwen2.5-0.5B-Instruct", "safetensors"),
    Published("Qwen", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "gguf", "qwen2.5-0.5b-instruct-q8_0.gguf"),
    Published("Qwen", "Qwen/Qwen3-0.6B", "safetensors"),
    Published("Qwen", "Qwen/Qwen3-0.6B-GGUF", "gguf", "Qwen3-0.6B-Q8_0.gguf"),
    Published("Qwen", "Qwen/Qwen3-30B-A3B", "safetensors"),
    Published("Qwen", "Qwen/Qwen3-30B-A3B-GGUF", "gguf", "Qwen3-30B-A3B-Q4_K_M.gguf"),
    Published("GLM", "zai-org/glm-edge-1.5b-chat", "safetensors"),
    Published("GLM", "zai-org/GLM-4-9B-0414", "safetensors"),
    Published("GLM", "unsloth/GLM-4-9B-0414-GGUF", "gguf", "GLM-4-9B-0414-Q4_K_M.gguf"),
    Published("GLM", "zai-org/GLM-4.5-Air", "safetensors"),
    Published("Nemotron", "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", "safetensors"),
    Published("Nemotron", "unsloth/NVIDIA-Nemotron-3-Nano-4B-GGUF", "gguf", "NVIDIA-Nemotron-3-Nano-4B-Q4_K_M.gguf"),
    Published("Nemotron", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "safetensors"),
    Published(
        "Nemotron",
        "bartowski/nvidia_NVIDIA-Nemotron-Nano-9B-v2-GGUF",
        "gguf",
        "nvidia_NVIDIA-Nemotron-Nano-9B-v2-Q4_K_M.gguf",
    ),
    Published("Llama", "HuggingFaceTB/SmolLM2-135M-Instruct", "safetensors"),
    Published("Llama", "bartowski/SmolLM2-135M-Instruct-GGUF", "gguf", "SmolLM2-135M-Instruct-Q8_0.gguf"),
)


def chosen_families(names: Sequence[str]) -> list[Published]:
    """Returns the models of the named families, in any case; all if none is named. Raises Problem."""
    known = {each.family.lower(): each.family for each in PUBLISHED}
    for name in names:
        if name.lower() not in known:
            raise Problem(f"there is no family {name!r}; there are {', '.join(known.values())}")
    wanted = {name.lower() for name in names} or known.keys()
    return [each for each in PUBLISHED if each.family.lower() in wanted]
