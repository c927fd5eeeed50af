"""The gateway as in a cluster: real services as their containers run them, mutual TLS, DNS names for addresses.

One text replica is rolled and one killed under load. No request may be lost: each gets its answer. Only requests that
the killed replica was answering may end early, in a way that the client notices.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import httpx
import pytest
from trustme import CA

from services.settings.tls_settings import SERVICE_NAME
from tests.chaos.gateway_caller import TEXT, GatewayCaller
from tests.chaos.known_answers import SHORT_STREAMS
from tests.chaos.outcome import Outcome
from tests.chaos.steady_load import SteadyLoad, steady_load
from tests.cluster.certificates import issue
from tests.cluster.gateway_command import gateway_command
from tests.cluster.service_process import ServiceProcess, ending, until
from tests.demo_model import demo_model
from tests.stack import MODEL

CALLERS = 3

pytestmark = pytest.mark.slow


async def more(load: SteadyLoad) -> None:
    """Waits for more answers, at least one of them to a request that began after now."""
    since = monotonic()
    await load.until(lambda: load.ended(since=since) >= CALLERS)


async def test_one_replica_is_rolled_and_one_is_killed(tmp_path: Path) -> None:
    model = demo_model()
    certificates = issue(tmp_path / "tls", CA(), SERVICE_NAME).service()
    catalog = ServiceProcess("catalog", "catalog", tmp_path, {**certificates, "ALLM_MODEL_ROOTS": str(model.parent)})
    settings = {
        **certificates,
        "ALLM_CATALOG": f"127.0.0.1:{catalog.port}",
        "ALLM_MODEL_ROOTS": str(model.parent),
        "ALLM_PRELOAD": MODEL,
        "ALLM_THREADS": "1",
        "ALLM_DRAIN_DELAY_SECONDS": "2",
    }
    rolled, killed = (ServiceProcess("text", name, tmp_path, settings) for name in ("text-rolled", "text-killed"))
    where = {
        "ALLM_GATEWAY_TEXT": f"localhost:{rolled.port},localhost:{killed.port}",
        "ALLM_CATALOG": f"localhost:{catalog.port}",
        **certificates,
    }

    async def both() -> bool:
        return await gateway.count("cluster.text.membership_healthy") == 2

    async with ending(catalog, rolled, killed), gateway_command(tmp_path, **where) as gateway:
        await catalog.start()
        await until(lambda: gateway.count("cluster.catalog.membership_healthy"))
        body = {"id": MODEL, "source": f"file://{model}", "format": "gguf"}
        async with httpx.AsyncClient() as client:
            registered = await client.post(f"{gateway.base_url}/models", json=body)
        assert registered.status_code == 200, registered.text
        for replica in (rolled, killed):
            await replica.start()
        await until(both)
        caller = GatewayCaller(gateway, SHORT_STREAMS)
        try:
            async with steady_load(caller, {TEXT: CALLERS}) as load:
                await more(load)
                assert await rolled.stop() == 0
                await more(load)
                await rolled.start()
                await until(both)
                kill = monotonic()
                await killed.kill()
                dead = monotonic()
                await more(load)
        finally:
            await caller.close()
        failed = [attempt for attempt in load.attempts if attempt.outcome is not Outcome.COMPLETED]
        assert all(kill <= attempt.ended and attempt.started < dead for attempt in failed), failed
        assert all(attempt.outcome in (Outcome.CUT, Outcome.REFUSED) for attempt in failed), failed
        assert load.attempts, gateway.log.read_text()
