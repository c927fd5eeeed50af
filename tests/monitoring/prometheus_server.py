"""A Prometheus for tests: Debian's program, with its own configuration and folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.ports import free_port

PROMETHEUS = shutil.which("prometheus") or "/usr/bin/prometheus"
PROMTOOL = shutil.which("promtool") or "/usr/bin/promtool"
START_SECONDS = 60
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def api(self, path: str, **parameters: str) -> Any:
        """Returns the data of an API call. Raises HTTPError for an invalid query."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}", timeout=30) as reply:
            return json.load(reply)["data"]

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Returns the current series of an expression."""
        found: list[dict[str, Any]] = self.api("query", query=expression)["result"]
        return found

    def targets(self) -> list[dict[str, Any]]:
        """Returns its scrape targets."""
        found: list[dict[str, Any]] = self.api("targets")["activeTargets"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Returns its rules."""
        return [rule for group in self.api("rules")["groups"] for rule in group["rules"]]


@contextmanager
def running_prometheus(folder: Path, urls: Mapping[str, str], rules: Path) -> Iterator[Prometheus]:
    """Scrapes `urls`, which are keyed by service name, every second; evaluates `rules` as often."""
    jobs = []
    for name, url in urls.items():
        parts = urllib.parse.urlsplit(url)
        jobs.append(
            {"job_name": f"allm-{name}", "metrics_path": parts.path, "static_configs": [{"targets": [parts.netloc]}]}
        )
    times = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config, log = folder / "prometheus.yaml", folder / "prometheus.log"
    config.write_text(yaml.safe_dump({"global": times, "rule_files": [str(rules)], "scrape_configs": jobs}))
    port = free_port()
    command = (
        PROMETHEUS,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _is_ready(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(POLL_SECONDS)
        yield Prometheus(process, port, log)
    finally:
        process.kill()
        process.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:  # refused, or an HTTP error
        return False
