"""The cost of the gateway for streams: many at the same time, with and without it.

    python -m bench.streams [--streams 500] [--rate 10] [--tokens 100] [--rounds 2]

The service (bench/paced_text.py) has no model and sends each stream's tokens at a fixed rate, so the bench measures
only the path from the service to the callers. Every round reads all streams in four ways, one after the other: the same
gRPC messages from the service itself and through the gateway, typed and as REST. Callers, service and Envoy share the
machine: if it is busy, every process waits for the others, and all of that counts as latency.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import grpc
import typer
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console

from bench.level import percentile
from bench.noise import NoiseMeter, process_seconds
from bench.process import Launch, ServerError, free_port, running
from bench.results_folder import save
from bench.run import RESULTS_DIR
from bench.stream_caller import RAMP_SECONDS, GrpcCallers, RestCallers, Streams, read_all

START_SECONDS = 60.0
STOP_SECONDS = 30.0
SLACK_SECONDS = 120.0  # in addition to a stream's nominal duration, for a busy machine
DIRECT, GATEWAY = "the service itself", "through the gateway"
TYPED, REST = "typed gRPC", "REST (direct: the same HttpBody messages by gRPC)"
WAYS = ((TYPED, DIRECT), (TYPED, GATEWAY), (REST, DIRECT), (REST, GATEWAY))
PERCENTS = (50, 99)


@dataclass(frozen=True, slots=True)
class Load:
    """The load of the bench."""

    streams: int
    rate: float  # tokens per second of each stream
    tokens: int  # of each stream
    rounds: int


@dataclass(frozen=True, slots=True)
class Place:
    """The servers under load, with the processes whose CPU time counts."""

    service: str  # `host:port`
    service_pid: int
    gateway: str  # URL
    gateway_pid: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of one way in one round."""

    kind: str
    way: str
    seconds: float
    late_s: tuple[float, float]  # p50 and p99 of the tokens made after all streams had settled
    tokens: int
    failed: list[str]
    service_us: float  # CPU microseconds of the service per token
    gateway_us: float
    client_us: float
    other_percent: float  # of all cores: used by other processes, including the machine's own work


@contextmanager
def paced_text(rate: float, log: Path) -> Iterator[tuple[str, int]]:
    """Runs the service; yields its address and process id once it serves. Raises ServerError."""
    address = f"127.0.0.1:{free_port()}"
    environment = {"ALLM_LISTEN": address, "ALLM_METRICS_PORT": "0", "ALLM_LOG_LEVEL": "warning"}
    command = [sys.executable, "-m", "bench.paced_text", str(rate)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=output, stderr=output)
    try:
        with grpc.insecure_channel(address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lack Watch
            watch = stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=START_SECONDS)
            if next(watch).status != health_pb2.HealthCheckResponse.SERVING:
                raise ServerError(f"the service was not ready:\n{log.read_text('utf-8', 'replace')}")
            watch.cancel()
        yield address, process.pid
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def gateway(service: str, folder: Path) -> Launch:
    """Launches the gateway in front of the service, configured as in a cluster."""
    port = free_port()
    return Launch(
        name="gateway",
        arguments=[sys.executable, "-m", "services.cli", "gateway"],
        port=port,
        health_path="/healthz",
        log=folder / "gateway.log",
        environment={
            "ALLM_PORT": str(port),
            "ALLM_GATEWAY_TEXT": service,
            "ALLM_HOME": str(folder),
            "ALLM_DRAIN_DELAY_SECONDS": "0",
        },
        model="paced",
    )


async def measure(place: Place, load: Load) -> list[Reading]:
    """Measures all ways in each round."""
    return [await _once(place, load, kind, way) for _ in range(load.rounds) for kind, way in WAYS]


async def _once(place: Place, load: Load, kind: str, way: str) -> Reading:
    seconds = load.tokens / load.rate + SLACK_SECONDS
    before = process_seconds(place.service_pid), process_seconds(place.gateway_pid)
    meter, start = NoiseMeter(), time.perf_counter()
    read = await _read(place, load, kind, way, seconds)
    took, noise = time.perf_counter() - start, meter.read()
    service = process_seconds(place.service_pid) - before[0]
    envoy = process_seconds(place.gateway_pid) - before[1]
    each = 1e6 / max(1, read.tokens)
    ours = 100 * (service + envoy) / (took * (os.cpu_count() or 1))
    return Reading(
        kind=kind,
        way=way,
        seconds=took,
        late_s=(percentile(read.late_s, PERCENTS[0]), percentile(read.late_s, PERCENTS[1])),
        tokens=read.tokens,
        failed=read.failed,
        service_us=service * each,
        gateway_us=envoy * each,
        client_us=noise.client_cpu_s * each,
        other_percent=max(0.0, noise.other_percent - ours),
    )


async def _read(place: Place, load: Load, kind: str, way: str, seconds: float) -> Streams:
    if (kind, way) == (REST, GATEWAY):
        return await read_all(RestCallers(place.gateway, load.tokens).read, load.streams, seconds)
    address = place.service if way == DIRECT else place.gateway.removeprefix("http://")
    async with GrpcCallers(address, load.streams, load.tokens) as callers:
        return await read_all(callers.typed if kind == TYPED else callers.facade, load.streams, seconds)


def report(readings: Sequence[Reading], load: Load, machine: str) -> str:
    """Formats the results as Markdown."""
    complete = all(not reading.failed for reading in readings)
    lines = [
        "# Streams through the gateway",
        "",
        f"`python -m bench.streams`: {load.streams} streams at the same time, {load.tokens} tokens each at "
        f"{load.rate:g} tokens a second ({load.streams * load.rate:,.0f} a second in all), each token a message of its "
        f"own; {machine}. Latency is from when the service made a token to when its caller had it, once all streams "
        f"had begun (which takes {RAMP_SECONDS:g} s); callers, service and Envoy share a machine. CPU is microseconds "
        "of a core for each token; that of others is of all cores.",
        "",
        f"{'All streams were complete.' if complete else 'NOT all streams were complete, see below.'}",
        "",
        "| streams | way | complete | p50 ms | p99 ms | CPU service | CPU Envoy | CPU caller | others |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in readings:
        p50, p99 = (f"{1000 * late:.2f}" for late in one.late_s)
        lines.append(
            f"| {one.kind} | {one.way} | {load.streams - len(one.failed)} of {load.streams} | {p50} | {p99} "
            f"| {one.service_us:.0f} | {one.gateway_us:.0f} | {one.client_us:.0f} | {one.other_percent:.0f}% |"
        )
    lines += ["", "Added by the gateway, per token:", "", *_added(readings), ""]
    lines += [f"* {one.kind}, {one.way}: {reason}" for one in readings for reason in sorted(set(one.failed))]
    return "\n".join(lines).rstrip() + "\n"


def _added(readings: Sequence[Reading]) -> list[str]:
    """Returns the gateway's overhead from the best round of each way, because a busy machine distorts the others."""
    lines = ["| streams | p50 ms | p99 ms | CPU Envoy |", "|---|---|---|---|"]
    for kind in (TYPED, REST):
        best = {
            way: [
                min(one.late_s[at] for one in readings if (one.kind, one.way) == (kind, way))
                for at in range(len(PERCENTS))
            ]
            for way in (DIRECT, GATEWAY)
        }
        p50, p99 = (1000 * (through - direct) for direct, through in zip(best[DIRECT], best[GATEWAY], strict=True))
        envoy = min(one.gateway_us for one in readings if (one.kind, one.way) == (kind, GATEWAY))
        lines.append(f"| {kind} | {p50:.2f} | {p99:.2f} | {envoy:.0f} |")
    return lines


def main(
    streams: Annotated[int, typer.Option(help="Streams at the same time.")] = 500,
    rate: Annotated[float, typer.Option(help="Tokens a second of each stream.")] = 10.0,
    tokens: Annotated[int, typer.Option(help="Tokens of each stream.")] = 100,
    rounds: Annotated[int, typer.Option(help="How often each way is measured.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS_DIR,
) -> None:
    """Measures latency and CPU time for each token; fails if a stream was incomplete."""
    load, before = Load(streams, rate, tokens, rounds), os.getloadavg()[0]
    with TemporaryDirectory(prefix="allm-bench-") as kept:
        folder = Path(kept)
        with paced_text(rate, folder / "service.log") as (service, pid), running(gateway(service, folder)) as envoy:
            place = Place(service, pid, envoy.url, envoy.pid)
            readings = uvloop.run(measure(place, load))
    text = report(readings, load, f"{os.cpu_count()} cores, load average before {before:.1f}")
    save("streams", text, {"load": load, "readings": readings}, out)
    Console(soft_wrap=True).print(text, markup=False)
    if any(reading.failed for reading in readings):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
