"""What a stack holds of the machine: processes, threads, open files, tasks and memory; and whether it is at work."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import psutil
from allm.models.v1 import residency_service_pb2, residency_service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.stack_members import members
from tests.stack import Stack

MIB = 1024 * 1024
SETTLE_SECONDS = 120.0
BUSY = ("allm_requests_running", "allm_requests_waiting", "allm_kv_cells_active")
TASKS = "allm_tasks"
SERVICES = ("text", "audio", "image")
# Threads, files and tasks that a storm may leave though nothing leaks: pools of threads grow up to their bounds when
# they are needed. What every request leaves behind is far more.
SLACK = 4


@dataclass(frozen=True)
class Footprint:
    """Of all processes of a stack together. Memory: each page counts once, shared ones by share (PSS)."""

    processes: Counter[str]  # by what they are
    threads: int
    files: int
    tasks: int  # of the services' event loops
    memory: int  # bytes

    def beyond(self, other: Footprint) -> list[str]:
        """What this one has more of, by more than SLACK where that counts; memory left out."""
        more = [f"processes: {dict(found)}" for found in [self.processes - other.processes] if found]
        for name in ("threads", "files", "tasks"):
            mine, others = getattr(self, name), getattr(other, name)
            more += [f"{name}: {mine}, not {others}"] if mine > others + SLACK else []
        return more

    def __str__(self) -> str:
        return (
            f"{self.processes.total()} processes, {self.threads} threads, {self.files} open files, {self.tasks} tasks, "
            f"{self.memory / MIB:.0f} MiB"
        )


def footprint(stack: Stack) -> Footprint:
    """As it is now. Processes that end meanwhile do not count."""
    kinds: Counter[str] = Counter()
    threads = files = memory = 0
    for pid, kind in members(stack).items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                more = process.num_threads(), process.num_fds(), process.memory_full_info().pss
        except psutil.Error:
            continue
        kinds[kind] += 1
        threads, files, memory = threads + more[0], files + more[1], memory + more[2]
    tasks = sum(int(value) for name, _, value in _metrics(stack) if name == TASKS)
    return Footprint(kinds, threads, files, tasks, memory)


def work(stack: Stack) -> list[str]:
    """What the stack still computes, or holds for a request; nothing once all requests have ended."""
    busy = [f"{name} of {model}: {value:g}" for name, model, value in _metrics(stack) if name in BUSY and value]
    for service in SERVICES:
        with grpc.insecure_channel(f"unix:{stack.note['folder']}/{service}.sock") as channel:
            stub = residency_service_pb2_grpc.ResidencyServiceStub(channel)
            told = stub.GetResidency(residency_service_pb2.GetResidencyRequest(), timeout=SETTLE_SECONDS)
        busy += [f"{model.model_id} is in use" for model in told.residency.models if model.busy]
    return busy


async def at_rest(stack: Stack) -> None:
    """Waits until nothing is at work any more. Fails with what still is."""
    await _until(lambda: work(stack))


async def settled(stack: Stack, before: Footprint) -> Footprint:
    """Waits until a stack at rest has no more of anything than before. Fails with what it still has."""
    await at_rest(stack)
    await _until(lambda: footprint(stack).beyond(before))
    return footprint(stack)


async def _until(left: Callable[[], list[str]]) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while found := await asyncio.to_thread(left):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)


def _metrics(stack: Stack) -> Iterator[tuple[str, str, float]]:
    """Name, model and value of every sample of all services; Envoy's own are many, and tell of no model."""
    for url in [url for name, url in stack.note["metrics"].items() if name != "gateway"]:
        with urllib.request.urlopen(url, timeout=SETTLE_SECONDS) as reply:
            for family in text_string_to_metric_families(reply.read().decode()):
                for sample in family.samples:
                    yield sample.name, sample.labels.get("model", ""), sample.value
