"""Faults of processes: kill, stop, and lack of memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import psutil

from tests.chaos.chaos_stack import STALL_SECONDS, ChaosStack
from tests.chaos.fault import Fault, now
from tests.chaos.gateway_caller import PICTURES, SOUND, TEXT, TYPED, WHOLE
from tests.chaos.stack_members import kill, service_pid, stopped, worker_pids
from tests.chaos.steady_load import SteadyLoad
from tests.processes import has_ended

WORDS = {TEXT: 2, WHOLE: 1, TYPED: 1}
LOADS = {"text": WORDS, "audio": {SOUND: 2}, "image": {PICTURES: 2}}
PATIENCE_SECONDS = 240.0
# Of the address space of a worker with its model: too small for its libraries plus the model.
SHARES = {"text": 0.7, "audio": 0.5, "image": 0.6}
LARGE = 64 * 1024**2  # bytes of a mapping that may be a part of a cache with a whole context for every request


def worker_killed(*services: str) -> Fault:
    """Kills the workers of services with SIGKILL."""

    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        for service in services:
            for pid in worker_pids(stack.operator.stack, service):
                kill(pid)
        return now()

    return Fault(f"kill -9 of the worker: {_names(services)}", inject, _load(services))


def worker_stopped(*services: str) -> Fault:
    """Stops the workers of services with SIGSTOP, and never continues them: the watchdog kills them."""

    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        pids = [pid for service in services for pid in worker_pids(stack.operator.stack, service)]
        with stopped(*pids):
            await until(lambda: all(map(has_ended, pids)))
        return now()

    name = f"SIGSTOP of the worker, watchdog after {STALL_SECONDS} s: {_names(services)}"
    return Fault(name, inject, _load(services))


def service_killed(*services: str) -> Fault:
    """Kills services with SIGKILL; the supervisor restarts them."""

    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        pids = {service: service_pid(stack.operator.stack, service) for service in services}
        for pid in pids.values():
            kill(pid)
        start = now()
        await until(lambda: all(service_pid(stack.operator.stack, name) not in (0, pids[name]) for name in services))
        return start

    return Fault(f"kill -9 of the service: {_names(services)}", inject, _load(services), may_cut=True)


def service_stopped(*services: str) -> Fault:
    """Stops services with SIGSTOP: their requests must end all the same. Then continues them."""

    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        with stopped(*(service_pid(stack.operator.stack, service) for service in services)):
            since, running = now(), load.running
            # Waits until the earlier requests have ended, and as many later ones.
            await load.until(lambda: load.ended(since=since) >= 2 * running)
        return now()

    return Fault(f"SIGSTOP of the service, then SIGCONT: {_names(services)}", inject, _load(services), may_cut=True)


def gateway_killed() -> Fault:
    """Kills Envoy with SIGKILL."""
    return _bystander_killed("gateway", "kill -9 of Envoy", may_cut=True)


def catalog_killed() -> Fault:
    """Kills the catalog with SIGKILL; no request may fail."""
    return _bystander_killed("catalog", "kill -9 of the catalog", spared=frozenset(WORDS))


def no_memory(service: str) -> Fault:
    """Kills a worker, and limits the next one to less memory than the model needs: RLIMIT_AS, of workers only."""

    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        workers = worker_pids(stack.operator.stack, service)
        most = int(SHARES[service] * max(map(_address_space, workers)))
        starving = asyncio.create_task(_starve(stack, service, most))
        try:
            since = now()
            for pid in workers:
                kill(pid)
            # The first failures come from the killed worker, the later ones from failed loads.
            await load.until(lambda: load.ended(since=since, failed=True) >= 2 * load.callers)
        finally:
            starving.cancel()
            await asyncio.wait((starving,))
            for pid in worker_pids(stack.operator.stack, service):
                _limit(pid, psutil.RLIM_INFINITY)
        return now()

    return Fault(f"no memory for a worker (RLIMIT_AS): {service}", inject, _load((service,)))


def _address_space(pid: int) -> int:
    """Returns the bytes of a worker's address space, without what a cache has reserved and not used."""
    process = psutil.Process(pid)
    large = [each for each in process.memory_maps(grouped=False) if each.path == "[anon]" and each.size > LARGE]
    return int(process.memory_info().vms - sum(each.size - each.rss for each in large))


async def _starve(stack: ChaosStack, service: str, most: int) -> None:
    """Limits the address space of every new worker to `most` bytes."""
    limited: set[int] = set()
    while True:
        for pid in set(worker_pids(stack.operator.stack, service)) - limited:
            _limit(pid, most)
            limited.add(pid)
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if psutil.Process(pid).memory_info().vms > most:
                    kill(pid)  # it allocated before the limit was set: kill it, so that the next one starts limited
        await asyncio.sleep(0.01)


def _limit(pid: int, most: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.rlimit(psutil.RLIMIT_AS, (most, process.rlimit(psutil.RLIMIT_AS)[1]))


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what should have happened to a process has not")
        await asyncio.sleep(0.05)


def _bystander_killed(name: str, title: str, *, may_cut: bool = False, spared: frozenset[str] = frozenset()) -> Fault:
    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        pid = service_pid(stack.operator.stack, name)
        kill(pid)
        start = now()
        await until(lambda: service_pid(stack.operator.stack, name) not in (0, pid))
        return start

    return Fault(title, inject, WORDS, may_cut=may_cut, spared=spared)


def _load(services: tuple[str, ...]) -> dict[str, int]:
    return {kind: count for service in services for kind, count in LOADS[service].items()}


def _names(services: tuple[str, ...]) -> str:
    return ", ".join(services)
