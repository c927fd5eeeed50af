"""The resources of a stack: processes, threads, open files, tasks and memory; and a check that it is idle."""

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
# Threads, files and tasks that a storm may leave without a leak: thread pools grow to their bounds on demand.
# A leak per request would leave far more.
SLACK = 4


@dataclass(frozen=True)
class Footprint:
    """The resources of all processes of a stack. Memory is the proportional set size (PSS)."""

    processes: Counter[str]  # by kind
    threads: int
    files: int
    tasks: int  # of the services' event loops
    memory: int  # bytes

    def beyond(self, other: Footprint) -> list[str]:
        """Lists the resources that exceed the other's, threads, files and tasks by more than SLACK; ignores memory."""
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
    """Measures the current footprint. Processes that end meanwhile do not count."""
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
    """Lists the stack's running work, held models and services without an answer; empty once all requests ended."""
    busy = [f"{name} of {model}: {value:g}" for name, model, value in _metrics(stack) if name in BUSY and value]
    for service in SERVICES:
        with grpc.insecure_channel(f"unix:{stack.note['folder']}/{service}.sock") as channel:
            stub = residency_service_pb2_grpc.ResidencyServiceStub(channel)
            try:
                reported = stub.GetResidency(residency_service_pb2.GetResidencyRequest(), timeout=SETTLE_SECONDS)
            except grpc.RpcError as error:
                busy.append(f"{service} does not answer: {error}")
                continue
        busy += [f"{model.model_id} is in use" for model in reported.residency.models if model.busy]
    return busy


async def at_rest(stack: Stack) -> None:
    """Waits until the stack is idle. Fails with the remaining work."""
    await _until(lambda: work(stack))


async def settled(stack: Stack, before: Footprint) -> Footprint:
    """Waits until an idle stack holds no more resources than before. Fails with the surplus."""
    await at_rest(stack)
    await _until(lambda: footprint(stack).beyond(before))
    return footprint(stack)


async def _until(left: Callable[[], list[str]]) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while found := await asyncio.to_thread(left):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)


def _metrics(stack: Stack) -> Iterator[tuple[str, str, float]]:
    """Yields name, model and value of every sample of the services; not Envoy's, which are many and name no model."""
    for url in [url for name, url in stack.note["metrics"].items() if name != "gateway"]:
        with urllib.request.urlopen(url, timeout=SETTLE_SECONDS) as reply:
            for family in text_string_to_metric_families(reply.read().decode()):
                for sample in family.samples:
                    yield sample.name, sample.labels.get("model", ""), sample.value
