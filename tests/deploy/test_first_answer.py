"""From manifests to a first answer: the containers of the component `tls` as processes, as in docs/kubernetes.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from services.cli.main import create_identities
from tests.demo_model import demo_model
from tests.deploy.pod_processes import PodProcesses
from tests.deploy.renderings import rendering
from tests.redis_server import RedisServer

SECONDS = 120
MODELS = """
models:
  - id: demo
    source: file://{path}
    format: gguf
    aliases: [gpt-4o-mini]
    keep_loaded: true
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pods-") as short:
        yield Path(short)


def wait(condition: Callable[[], bool], pods: PodProcesses) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        reported = "\n".join(pods.output(name) for name in ("catalog", "text", "authorizer", "gateway"))
        assert time.monotonic() < deadline, reported
        time.sleep(0.1)


def secrets(pods: PodProcesses) -> ssl.SSLContext:
    """Fills in the Secrets that the documentation requires; returns a TLS context for callers."""
    for each in ("public-keys", "service-tls", "tls", "models"):
        pods.place(f"/etc/allm/{each}").mkdir(parents=True)
    create_identities(pods.place("/etc/allm/identity"))
    pods.place("/etc/allm/identity/public.keys").rename(pods.place("/etc/allm/public-keys/public.keys"))
    pods.place("/run/allm").mkdir(parents=True)
    ours, theirs = trustme.CA(), trustme.CA()
    for place, certificate in (
        ("service-tls", ours.issue_cert("allm-service")),
        ("tls", theirs.issue_cert("localhost", "127.0.0.1")),
    ):
        certificate.cert_chain_pems[0].write_to_path(str(pods.place(f"/etc/allm/{place}/tls.crt")))
        certificate.private_key_pem.write_to_path(str(pods.place(f"/etc/allm/{place}/tls.key")))
    ours.cert_pem.write_to_path(str(pods.place("/etc/allm/service-tls/ca.crt")))
    context = ssl.create_default_context()
    theirs.configure_trust(context)
    return context


def declare(pods: PodProcesses) -> None:
    """Writes the ConfigMap with a model that needs no hub."""
    pods.place("/models").mkdir()
    path = pods.place("/models/demo.gguf")
    try:
        os.link(demo_model(), path)
    except OSError:  # on another file system
        shutil.copy(demo_model(), path)
    pods.place("/etc/allm/models/models.yaml").write_text(MODELS.format(path=path))


def scraped(pods: PodProcesses, name: str, port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{pods.port(name, port)}{path}", timeout=60) as reply:
        return str(reply.read().decode())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_caller_with_a_key_has_an_answer(folder: Path) -> None:
    pods = PodProcesses(rendering("kustomize: tls"), folder)
    context = secrets(pods)
    declare(pods)
    url = f"https://127.0.0.1:{pods.port('gateway', 8080)}"

    def call(path: str, key: str = "", body: object = None) -> tuple[int, str]:
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url + path, data, headers), context=context, timeout=60
            ) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:  # it does not listen yet
            return 0, ""

    redis_folder = folder / "redis"
    redis_folder.mkdir()
    redis = RedisServer(redis_folder)
    pods.redis_url = redis.url
    try:
        for name in ("catalog", "authorizer", "text"):
            pods.start(name)
        wait(lambda: all(pods.has_started(name) for name in ("catalog", "authorizer", "text")), pods)
        pods.start("gateway")
        wait(lambda: call("/healthz")[0] == 200, pods)
        assert call("/v1/models")[0] == 401

        reported = pods.execute("catalog", "allm", "keys", "create", "me", "--scope", "inference", "--scope", "admin")
        (key,) = set(re.findall(r"sk-allm-[\w-]{43}", reported))
        wait(lambda: '"gpt-4o-mini"' in call("/v1/models", key)[1], pods)
        question = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        status, answer = call("/v1/chat/completions", key, question)
        assert status == 200, answer
        assert json.loads(answer)["choices"][0]["message"]["content"]
        status, _ = call("/v1/chat/completions", "sk-allm-" + "x" * 43, question)
        assert status == 401
        assert "me" in pods.execute("catalog", "allm", "keys", "list")

        # The ServiceMonitor's targets, with the autoscaler's metrics among them.
        assert "allm_requests_running{" in scraped(pods, "text", 9464, "/metrics")
        assert "allm_requests_waiting{" in scraped(pods, "text", 9464, "/metrics")
        for name, port in (("catalog", 9464), ("authorizer", 9465)):
            assert "allm_" in scraped(pods, name, port, "/metrics")
        assert 'envoy_cluster_name="text"' in scraped(pods, "gateway", 9901, "/stats/prometheus")
    finally:
        statuses = pods.stop()
        redis.kill()
    assert statuses == {"catalog": 0, "authorizer": 0, "text": 0, "gateway": 0}
