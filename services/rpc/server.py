"""`serve()`: the main function of every service process.

gRPC on uvloop with health, reflection and message limits; Prometheus metrics; JSON logs; a graceful drain on SIGTERM:
health turns to NOT_SERVING so that load balancers stop sending, then running requests may finish within a grace period.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.auth.authentication import Authenticator
from services.errors import AllmError
from services.rpc.call import Call
from services.rpc.channel import is_plain, server_credentials
from services.rpc.probe import Probes
from services.rpc.shares import Shares
from services.settings.modality_settings import MIB
from services.settings.setting import SettingError
from services.settings.settings import ServiceSettings, Settings, load_settings
from services.settings.tls_settings import ServiceTls
from services.storage import private_folder
from services.telemetry import tracing
from services.telemetry.logs import setup_logs
from services.telemetry.metrics import SWEEP_SECONDS, TASKS, forget_others, serve_metrics

log = logging.getLogger(__name__)

EXIT_BAD_SETTING = 2
EXIT_CANNOT_START = 1
FLUSH_SECONDS = 3.0  # to send the remaining spans to the collector, at the end
TRIM_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Application:
    """A service's parts: its typed services by full name, and its hooks for warm-up and shutdown."""

    services: Sequence[str]
    close: Callable[[], Awaitable[None]]
    leave: Callable[[], Awaitable[None]] | None = None  # called before the drain, when no new requests shall come
    described: Sequence[str] = ()  # other processes' services that reflection here describes as well
    ready: Callable[[], Awaitable[object]] | None = None  # returns once it can serve; until then health is NOT_SERVING
    warm: Callable[[], Awaitable[None]] | None = None  # returns once all models for the start are loaded
    models: Callable[[], Collection[str]] | None = None  # ids of existing models: metrics of others are removed


Build = Callable[[grpc.aio.Server, Settings], Awaitable[Application]]


def run(build: Build, name: str = "") -> None:
    """Runs a service until it is stopped; exits with an error message if it cannot start.

    `name`: the service's name in traces, after `allm-`.
    """
    try:
        settings = load_settings()
        setup_logs(settings.service.log_level)
        uvloop.run(_traced(build, settings, f"allm-{name}" if name else "allm"))
    except SettingError as error:
        print(f"allm: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_SETTING)
    except (AllmError, OSError) as error:
        print(f"allm: cannot start: {error}", file=sys.stderr)
        sys.exit(EXIT_CANNOT_START)


async def _traced(build: Build, settings: Settings, name: str) -> None:
    """Serves, with tracing if it is enabled."""
    stop = tracing.start(settings.trace, name, settings.model.replica)
    try:
        await serve(build, settings)
    finally:
        await asyncio.to_thread(stop, FLUSH_SECONDS)


async def serve(build: Build, settings: Settings) -> None:
    """Starts a service, serves until SIGTERM, SIGINT or the end of the supervisor, and drains."""
    async with Probes(settings.service.health_listen) as probes:
        await _serve(build, settings, probes)


async def _give_memory_back() -> None:
    """Makes glibc return freed memory to the system (malloc_trim(3)); other C libraries do so anyway.

    Otherwise a service keeps hundreds of megabytes after many uploads: the buffers of gRPC's threads lie scattered.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim:
        await asyncio.sleep(TRIM_SECONDS)
        await asyncio.to_thread(trim, 0)


async def _serve(build: Build, settings: Settings, probes: Probes) -> None:
    stop = _stop_event(settings.service)
    Call.slow_client_seconds = settings.service.slow_client_seconds
    most_bytes = max(settings.service.bytes_in_flight, settings.service.max_body_bytes + MIB)
    Call.bodies = Shares(most_bytes, variable="ALLM_BYTES_IN_FLIGHT")
    Call.unknown_refused = settings.service.unknown_parameters == "refuse"
    authenticator = Call.authenticator = Authenticator.of(settings)
    server = grpc.aio.server(options=_options(settings.service))
    with contextlib.suppress(OSError):  # whatever needs the folder reports that it cannot be used
        private_folder(settings.home)
    application = await build(server, settings)
    following = asyncio.create_task(authenticator.follow())
    try:
        status = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(status, server)
        names = (*application.services, *application.described, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        _bind(server, settings.service.listen, settings.tls.service)
        port, stop_metrics = serve_metrics(settings.service.metrics_host, settings.service.metrics_port)
        loop = asyncio.get_running_loop()
        TASKS.set_function(lambda: len(asyncio.all_tasks(loop)))
        chores = [asyncio.create_task(_give_memory_back())]
        if application.models:
            chores.append(asyncio.create_task(_sweep_metrics(application.models)))
        if application.ready:
            await status.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        await server.start()
        facts = {"listen": settings.service.listen, "metrics_port": port, "pid": os.getpid()}
        beginning = [
            asyncio.create_task(_become_ready(application, status, probes, facts)),
            asyncio.create_task(_warm(application, probes)),
        ]
        await stop.wait()
        for task in beginning:
            task.cancel()
        await probes.leaving()
        if application.leave:
            await application.leave()
        await _drain(server, status, settings.service)
        stop_metrics()
        for chore in chores:
            chore.cancel()
    finally:
        following.cancel()
        await application.close()
        await authenticator.close()
    log.info("stopped")


async def _sweep_metrics(models: Callable[[], Collection[str]]) -> None:
    """Removes the metrics of removed models, until it is cancelled."""
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            forget_others(models())
        except Exception:
            log.exception("the metrics of removed models cannot be removed")


async def _become_ready(
    application: Application, status: health.aio.HealthServicer, probes: Probes, facts: dict[str, object]
) -> None:
    """Reports that the service takes requests, as soon as it can serve them."""
    if application.ready:
        await application.ready()
    for name in ("", *application.services):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    await probes.ready()
    log.info("serving", extra=facts)


async def _warm(application: Application, probes: Probes) -> None:
    if application.warm:
        await application.warm()
    await probes.started()
    log.info("started")


def _bind(server: grpc.aio.Server, listen: str, tls: ServiceTls | None) -> None:
    try:
        if tls is None or is_plain(listen, tls):
            server.add_insecure_port(listen)
        else:
            server.add_secure_port(listen, server_credentials(tls))
    except RuntimeError as error:
        raise OSError(f"ALLM_LISTEN={listen}: the address cannot be used: {error}") from error


def _options(settings: ServiceSettings) -> list[tuple[str, int]]:
    return [
        # Above the gateway's body limit: a request that it accepts must not fail with RESOURCE_EXHAUSTED here.
        ("grpc.max_receive_message_length", settings.max_body_bytes + MIB),
        ("grpc.max_send_message_length", -1),
        # The gateway pings silent connections. By default gRPC takes several pings for abuse and closes the connection
        # with all its calls: any that is silent for 40 seconds, such as during a load. 0: any number of pings.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.so_reuseport", 0),
    ]


def _stop_event(settings: ServiceSettings) -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if settings.lifeline >= 0:
        os.set_inheritable(settings.lifeline, False)  # for this process, not for its workers
        loop.add_reader(settings.lifeline, _watch_lifeline, settings.lifeline, stop)
    return stop


def _watch_lifeline(pipe: int, stop: asyncio.Event) -> None:
    if not os.read(pipe, 1):
        log.warning("the supervisor is gone: stopping")
        asyncio.get_running_loop().remove_reader(pipe)
        stop.set()


async def _drain(server: grpc.aio.Server, status: health.aio.HealthServicer, settings: ServiceSettings) -> None:
    log.info("draining", extra={"delay": settings.drain_delay_seconds, "grace": settings.drain_seconds})
    await status.enter_graceful_shutdown()
    await asyncio.sleep(settings.drain_delay_seconds)
    await server.stop(settings.drain_seconds)
