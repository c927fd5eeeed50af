"""The trigger that scales a service up from zero: the gateway counts the requests that it refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.deploy.renderings import chart
from tests.ports import free_port

START_SECONDS = 60


def fetch(url: str, body: object = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def refused(metrics: str, query: str) -> float | None:
    """Returns Envoy's counter in the query of a ScaledObject; ignores the labels that Kubernetes adds.

    It must exist before the first refusal: Prometheus sees no increase for a series that has just appeared.
    """
    (name,) = re.findall(r"\w+(?=\{)", query)
    (cluster,) = re.findall(r'envoy_cluster_name="([^"]+)"', query)
    for line in metrics.splitlines():
        if line.startswith(f"{name}{{") and f'envoy_cluster_name="{cluster}"' in line:
            return float(line.rpartition(" ")[2])
    return None


@pytest.mark.parametrize("service", ["text", "audio"])
def test_the_gateway_counts_whom_it_turns_away_without_a_replica(service: str, tmp_path: Path) -> None:
    (scaled,) = [
        found
        for found in chart("scale-to-zero")
        if found["kind"] == "ScaledObject" and found["metadata"]["name"] == f"allm-{service}"
    ]
    (query,) = [each["metadata"]["query"] for each in scaled["spec"]["triggers"] if each["name"] == "refused"]
    port, metrics_port = free_port(), free_port()
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ALLM_")},
        "ALLM_HOME": str(tmp_path),
        "ALLM_PORT": str(port),
        "ALLM_GATEWAY_METRICS_PORT": str(metrics_port),
        # A name without addresses, like that of a headless Service without Pods.
        "ALLM_GATEWAY_TEXT": "text.invalid:50051",
        "ALLM_GATEWAY_AUDIO": "audio.invalid:50051",
        "ALLM_CATALOG": "127.0.0.1:1",
        "ALLM_DRAIN_DELAY_SECONDS": "0",
    }
    path = "/v1/chat/completions" if service == "text" else "/v1/audio/transcriptions"
    with (tmp_path / "output.txt").open("wb") as output:
        command = [sys.executable, "-m", "services.cli", "gateway"]
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert process.poll() is None, (tmp_path / "output.txt").read_text()
            assert time.monotonic() < deadline, (tmp_path / "output.txt").read_text()
            try:
                before = refused(fetch(f"http://127.0.0.1:{metrics_port}/stats/prometheus")[1], query)
                break
            except OSError:  # it does not listen yet
                time.sleep(0.05)
        assert before == 0
        status, _ = fetch(f"http://127.0.0.1:{port}{path}", {"model": "m", "messages": []})
        assert status == 503
        while not refused(fetch(f"http://127.0.0.1:{metrics_port}/stats/prometheus")[1], query):
            assert time.monotonic() < deadline, (tmp_path / "output.txt").read_text()
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0
