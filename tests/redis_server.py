"""A real redis-server on a free loopback port, with its data in its own folder."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import redis

from tests.ports import free_port

START_SECONDS = 60
POLL_SECONDS = 0.02
PASSWORD = "s3cr/et"


class RedisServer:
    """Starts immediately; call `stop` at the end. Every acknowledged command survives a kill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://:s3cr%2Fet@127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Returns its process id while it runs."""
        assert self._process
        return self._process.pid

    def connect(self) -> redis.Redis:
        """Returns a client for inspecting the data. Close it."""
        return redis.Redis.from_url(self.url, retry=None)

    def start(self) -> None:
        """Starts it (again), and waits until it answers."""
        program = shutil.which("redis-server")
        assert program, "redis-server is missing: apt-get install redis-server"
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "requirepass": PASSWORD,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        with (self.folder / "redis.log").open("ab") as output:
            self._process = subprocess.Popen([program, *arguments], stdout=output, stderr=output)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "redis.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        connection = self.connect()
        try:
            return bool(connection.ping())
        except redis.ConnectionError:
            return False
        finally:
            connection.close()
