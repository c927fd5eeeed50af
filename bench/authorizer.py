"""The latency that the authorizer adds to a request: `python -m bench.authorizer`.

The bench sends requests to the real process over a Unix socket, as Envoy does: first one after the other, then from 64
callers in parallel. The process has a snapshot of 10,000 keys and no catalog. The bench prints the round-trip time and
the authorizer's CPU time of a request. The round-trip time includes the Python client, so Envoy waits for less.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
from allm.envoy import external_auth_pb2, external_auth_pb2_grpc

from services.auth.identity_keys import AUTHORIZER, PUBLIC_NAME, create_keys
from services.auth.key_format import key_hash, new_key, new_key_id
from services.authorizer.__main__ import SNAPSHOT
from services.authorizer.key_table import KeySnapshot, KeyTable, KnownKey

KEYS = 10_000
QUESTIONS = 3000
CALLERS = 64
MOST_REQUESTS = 2**31 - 1  # a limit that is never reached, so that the bench includes its check
Ask = Callable[[], Awaitable[float]]


def main() -> int:
    """Prints a line for each load; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="authorizer-") as folder:
        home = Path(folder)
        shown = asyncio.run(_prepare(home))
        with _authorizer(home) as process:
            asyncio.run(_measure(f"unix:{home}/s", shown, process))
    return 0


async def _prepare(home: Path) -> str:
    """Writes the authorizer's own key and the snapshot; returns one of the API keys."""
    folder = home / "identity"
    create_keys({AUTHORIZER: folder / f"{AUTHORIZER}.key"}, folder / PUBLIC_NAME)
    table, shown = KeyTable(), new_key()
    snapshot = KeySnapshot(home / SNAPSHOT, table)
    for number in range(KEYS):
        digest = key_hash(shown if number == 0 else new_key())
        table.put(KnownKey(id=new_key_id(), sha256=digest, scopes=("inference",), requests_per_minute=MOST_REQUESTS))
    await snapshot.flush()
    return shown


@contextmanager
def _authorizer(home: Path) -> Iterator[psutil.Process]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ALLM_")}
    settings = {
        "ALLM_AUTH": "keys",
        "ALLM_HOME": str(home),
        "ALLM_LISTEN": f"unix:{home}/s",
        "ALLM_CATALOG": f"unix:{home}/nowhere",
        "ALLM_METRICS_PORT": "0",
        "ALLM_DRAIN_DELAY_SECONDS": "0",
    }
    command = [sys.executable, "-m", "services.authorizer"]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, env=inherited | settings, stdout=log, stderr=log)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


async def _measure(address: str, shown: str, process: psutil.Process) -> None:
    request = external_auth_pb2.CheckRequest()
    http = request.attributes.request.http
    http.method, http.path = "POST", "/v1/chat/completions"
    http.headers["authorization"], http.headers["content-type"] = f"Bearer {shown}", "application/json"
    async with grpc.aio.insecure_channel(address) as channel:
        stub = external_auth_pb2_grpc.AuthorizationStub(channel)

        async def ask() -> float:
            started = time.perf_counter()
            reply = await stub.Check(request, wait_for_ready=True)
            if not reply.HasField("ok_response"):
                raise ValueError(f"it refused: {reply}")
            return time.perf_counter() - started

        for _ in range(200):
            await ask()
        await _report("one after the other", ask, 1, process)
        await _report(f"{CALLERS} callers at once", ask, CALLERS, process)


async def _report(name: str, ask: Ask, callers: int, process: psutil.Process) -> None:
    async def several() -> list[float]:
        return [await ask() for _ in range(QUESTIONS // callers)]

    before, started = _processor_seconds(process), time.perf_counter()
    times = [seconds for part in await asyncio.gather(*(several() for _ in range(callers))) for seconds in part]
    wall, used = time.perf_counter() - started, _processor_seconds(process) - before
    cuts = statistics.quantiles(times, n=100)
    print(
        f"{name:<22} p50 {cuts[49] * 1000:6.2f} ms, p99 {cuts[98] * 1000:6.2f} ms, {len(times) / wall:6.0f} a second, "
        f"{used / len(times) * 1e6:4.0f} us of processor time each"
    )


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(main())
