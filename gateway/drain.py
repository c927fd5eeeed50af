"""Drains a gateway: rejects new clients and waits for running requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.admin import AdminError, EnvoyAdmin

POLL_SECONDS = 0.05


async def drain(admin: EnvoyAdmin, seconds: float, say: Callable[[str], None]) -> None:
    """Disconnects clients and waits up to `seconds` for running requests; `say` reports their number."""
    try:
        async with asyncio.timeout(seconds):
            await admin.drain()
            if active := await admin.active_requests():
                requests = "1 running request" if active == 1 else f"{active} running requests"
                say(f"waiting up to {seconds:g} s for {requests}; Ctrl-C stops at once")
            while await admin.active_requests():  # noqa: ASYNC110 - another process, it has no events
                await asyncio.sleep(POLL_SECONDS)
    except AdminError:  # Envoy has crashed or is stuck: nothing to wait for
        return
    except TimeoutError:
        say("the time for running requests is over")
