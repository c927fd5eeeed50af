"""`allm gateway`: the gateway alone, in front of services that run elsewhere, until it is stopped.

Envoy ends its streams immediately on SIGTERM, so it runs as the only child of this process, which handles the signal
and drains Envoy. A container needs no pre-stop hook.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gateway.address import KEYS, confined, is_confined, split_host_port
from gateway.admin import AdminError, EnvoyAdmin, drain
from gateway.process import envoy_command
from gateway.render import Gateway, write_config
from gateway.text_groups import TextGroups
from services.cli.problem import Problem
from services.cli.serve.ports import choose_port
from services.cli.serve.process import describe_exit, ending_with_us, first_of
from services.cli.serve.run_folder import socket_parent
from services.settings.gateway_settings import GROUPS_VARIABLE
from services.settings.setting import SettingError
from services.settings.settings import Settings, load_settings
from services.telemetry.logs import setup_logs

log = logging.getLogger(__name__)

CONFINED = (
    "ALLM_HOST=%s is ignored, the gateway listens on 127.0.0.1: anyone who can reach it could use the models. "
    "Set ALLM_AUTH=keys for API keys, or ALLM_AUTH=open if another system protects it"
)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOP_SECONDS = 10.0  # for Envoy to end once no request runs


def run_gateway(environ: Mapping[str, str]) -> None:
    """Runs Envoy until SIGTERM or SIGINT, then until its requests have ended; a second signal ends it immediately.

    Raises:
        SettingError: a variable of `environ` is invalid.
        Problem: Envoy cannot start, or has ended by itself.
    """
    settings = load_settings(environ)
    setup_logs(settings.service.log_level)
    with tempfile.TemporaryDirectory(prefix="allm-gateway-", dir=socket_parent()) as folder:
        gateway = describe(settings, Path(folder))
        if is_confined(settings.gateway):
            log.warning(CONFINED, settings.gateway.host)
        port = choose_port(gateway.settings.host, gateway.settings.port, "ALLM_PORT")
        gateway = replace(gateway, settings=replace(gateway.settings, port=port))
        asyncio.run(_Run(gateway, settings).until_stopped())


def describe(settings: Settings, folder: Path) -> Gateway:
    """Builds the gateway from the settings; it writes its files to `folder`.

    Raises:
        SettingError: addresses are missing or invalid.
    """
    cluster, models = settings.cluster, settings.cluster.share.models
    if not cluster.text:
        raise SettingError("ALLM_GATEWAY_TEXT", "", "the text service's host:port, or several, comma-separated")
    for name in models.names:
        if name not in dict(cluster.groups):
            allowed = f"a list of all groups that ALLM_TEXT_GROUP_MODELS names; {name!r} is missing"
            raise SettingError(GROUPS_VARIABLE, ";".join(dict(cluster.groups)), allowed)
    asks = settings.gateway.auth == KEYS
    places = {
        "ALLM_GATEWAY_TEXT": cluster.text,
        "ALLM_GATEWAY_AUDIO": cluster.audio,
        "ALLM_GATEWAY_IMAGE": cluster.image,
        GROUPS_VARIABLE: tuple(address for _, addresses in cluster.groups for address in addresses),
        "ALLM_CATALOG": (settings.model.catalog,),
        "ALLM_AUTHORIZER": (settings.gateway.authorizer,) if asks else (),
    }
    for variable, addresses in places.items():
        for address in addresses:
            _check(variable, address)
    try:
        return Gateway(
            confined(settings.gateway),
            text=cluster.text,
            audio=cluster.audio,
            image=cluster.image,
            catalog=settings.model.catalog,
            groups=TextGroups(cluster.groups, models),
            admin=f"unix:{folder / 'admin.sock'}",
            folder=folder,
            tls=settings.tls,
            trace=settings.trace,
        )
    except ValueError as error:
        raise Problem(str(error)) from error


def _check(variable: str, address: str) -> None:
    if address.startswith("unix:/"):
        return
    try:
        _, port = split_host_port(address)
        there = 0 < port < 65536
    except ValueError:
        there = False
    if not there:
        raise SettingError(variable, address, "host:port or unix:/path")


class _Run:
    """One run of Envoy."""

    def __init__(self, gateway: Gateway, settings: Settings) -> None:
        self._gateway = gateway
        self._service = settings.service
        self._admin = EnvoyAdmin(gateway.folder / "admin.sock")
        self._stop = asyncio.Event()  # the first signal
        self._kill = asyncio.Event()  # the second

    async def until_stopped(self) -> None:
        """Starts Envoy, waits for a signal, and drains Envoy. Raises Problem if Envoy ends by itself."""
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        command = envoy_command(write_config(self._gateway), os.cpu_count() or 1)
        # Envoy inherits our output. It gets its own session, because we handle a terminal's Ctrl-C.
        envoy = await asyncio.create_subprocess_exec(
            *ending_with_us(command), stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        try:
            ended, _ = await first_of(envoy.wait(), self._serving())
            if ended:
                raise Problem(f"Envoy {describe_exit(ended.result())}; the reason is in its log, above")
            await first_of(envoy.wait(), self._kill.wait(), self._leave())
            if envoy.returncode is None:
                envoy.terminate()
                await first_of(envoy.wait(), asyncio.sleep(STOP_SECONDS), self._kill.wait())
        finally:
            if envoy.returncode is None:
                envoy.kill()
            await envoy.wait()
        log.info("stopped")

    def _on_signal(self) -> None:
        (self._kill if self._stop.is_set() else self._stop).set()

    async def _serving(self) -> None:
        """Logs the start of serving; returns at the stop signal."""
        started = asyncio.create_task(self._started())
        await self._stop.wait()
        started.cancel()

    async def _started(self) -> None:
        await self._admin.wait_ready()
        log.info("serving", extra={"host": self._gateway.settings.host, "port": self._gateway.settings.port})

    async def _leave(self) -> None:
        """Fails the health check, serves during the drain delay, then waits for running requests."""
        log.info("draining", extra={"delay": self._service.drain_delay_seconds, "grace": self._service.drain_seconds})
        try:
            await self._admin.fail_health()
        except AdminError as error:
            log.warning("Envoy does not answer", extra={"reason": str(error)})
            return
        await asyncio.sleep(self._service.drain_delay_seconds)
        await drain(self._admin, self._service.drain_seconds, log.info)
