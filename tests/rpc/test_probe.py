"""The probe command of container engines: its exit status reports the health of a service."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from services.rpc.probe import NotServing, ask, main
from services.rpc.probes import LIVENESS, READINESS, STARTUP, Probes
from tests.ports import free_port


async def test_each_probe_tells_its_own() -> None:
    port = free_port()
    async with Probes(f"127.0.0.1:{port}") as probes:

        async def reported(name: str) -> bool:
            try:
                # The setting as containers have it: no address to connect to.
                await asyncio.to_thread(ask, f"0.0.0.0:{port}", name)
            except NotServing:
                return False
            return True

        assert [await reported(name) for name in (STARTUP, READINESS, LIVENESS)] == [False, False, True]
        await probes.ready()
        assert [await reported(name) for name in (STARTUP, READINESS, LIVENESS)] == [False, True, True]
        await probes.started()
        assert [await reported(name) for name in (STARTUP, READINESS, LIVENESS)] == [True, True, True]
        await probes.leaving()
        assert [await reported(name) for name in (STARTUP, READINESS, LIVENESS)] == [True, False, True]


@pytest.mark.parametrize(
    ("listen", "reported"), [("", "ALLM_HEALTH_LISTEN is not set"), ("127.0.0.1:1", "does not answer")]
)
def test_missing_listener_is_reported(listen: str, reported: str) -> None:
    with pytest.raises(NotServing, match=reported):
        ask(listen, READINESS)


def test_the_exit_status_tells_it_all(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["health"]) == 2
    monkeypatch.setenv("ALLM_HEALTH_LISTEN", f"127.0.0.1:{free_port()}")
    assert main([READINESS]) == 1
    assert "does not answer" in capfd.readouterr().err
    monkeypatch.setenv("ALLM_LOG_LEVEL", "loud")
    assert main([READINESS]) == 1
    assert "ALLM_LOG_LEVEL" in capfd.readouterr().err


async def test_it_is_a_command() -> None:
    async with Probes(f"127.0.0.1:{(port := free_port())}"):
        command = [sys.executable, "-m", "services.rpc.probe", LIVENESS]
        environ = {"ALLM_HEALTH_LISTEN": f"127.0.0.1:{port}"}
        done = await asyncio.to_thread(subprocess.run, command, env=environ, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
