"""A real Prometheus with a running stack: it reads all metrics, and every dashboard panel and alert has its data."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import openai
import pytest

from monitoring.alerts import ALERTS
from monitoring.dashboard import ROWS
from monitoring.outputs import ROOT, RULES
from monitoring.panel import Query
from tests.case import case
from tests.demo_model import demo_model
from tests.minilm import ENCODER
from tests.monitoring.prometheus_server import PROMTOOL, Prometheus, running_prometheus
from tests.speech import librivox
from tests.stack import IMAGE_MODEL, MODEL, SPEECH_MODEL, Stack

pytestmark = pytest.mark.slow
SETTLE_SECONDS = 60
WINDOW = "30m"  # Grafana's default is shorter, and may have passed before a slow machine sends the query
MODELS = {MODEL, ENCODER, SPEECH_MODEL, IMAGE_MODEL}
QUERIES = {
    f"{row}: {panel.title} {number}": query
    for row, panels in ROWS.items()
    for panel in panels
    for number, query in enumerate(panel.queries)
}


def use(client: openai.OpenAI) -> None:
    """Sends one request of every kind, and one for a model that does not exist, concurrently."""

    def chat() -> None:
        said = [{"role": "user", "content": "Tell me of the sea."}]
        for _ in client.chat.completions.create(model=MODEL, messages=said, max_tokens=24, stream=True):
            pass

    def embed() -> None:
        client.embeddings.create(model=ENCODER, input=["one", "two"])

    def hear() -> None:
        clip = librivox()[0]
        client.audio.transcriptions.create(model=SPEECH_MODEL, file=(clip.path.name, clip.path.read_bytes()))

    def draw() -> None:
        client.images.generate(model=IMAGE_MODEL, prompt="a red circle", extra_body={"steps": 4})

    def miss() -> None:
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="not-there", input="x")

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(each) for each in (chat, embed, hear, draw, miss)]:
            done.result()


def scraped(target: dict[str, Any]) -> datetime:
    """Returns the time of the last scrape. Prometheus sends nanoseconds, which exceed Python's precision."""
    return datetime.fromisoformat(re.sub(r"\.\d+", "", target["lastScrape"]))


def settle(condition: Callable[[], object]) -> None:
    """Waits until a condition is true."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture(scope="module")
def prometheus(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scraped the stack before and after requests of every kind: only then do counters grow."""
    with (
        openai.OpenAI(base_url=stack.base_url, api_key="none", max_retries=0) as client,
        running_prometheus(tmp_path_factory.mktemp("prometheus"), stack.note["metrics"], ROOT / RULES) as running,
    ):
        for _ in range(2):
            use(client)
            ended = datetime.now(UTC)
            # At first Prometheus has no targets: then nothing would be scraped between the two uses.
            settle(lambda ended=ended: (found := running.targets()) and all(scraped(each) > ended for each in found))
        yield running


def filled(query: Query) -> str:
    """Returns the expression as Grafana sends it when all models are chosen."""
    expression = query.expression.replace("$__rate_interval", WINDOW).replace("$model", ".+")
    assert "$" not in expression
    return expression


def has_data(prometheus: Prometheus, query: Query) -> bool:
    """Checks that a query returns data. It may be empty for a moment after a scrape that took too long."""
    return any(series["value"][1] != "NaN" for series in prometheus.ask(filled(query)))


def test_every_process_is_scraped(prometheus: Prometheus, stack: Stack) -> None:
    targets = {f"allm-{name}": "up" for name in stack.note["metrics"]}  # a busy process may answer slowly
    settle(lambda: {target["labels"]["job"]: target["health"] for target in prometheus.targets()} == targets)
    assert {"text", "audio", "image", "catalog", "gateway"} <= set(stack.note["metrics"])


def test_every_panel_has_something_to_show(prometheus: Prometheus) -> None:
    for title, query in QUERIES.items():
        with case(title=title, expression=filled(query)):
            prometheus.ask(filled(query))  # an error would raise
            if query.must_have_data:
                settle(lambda query=query: has_data(prometheus, query))


def test_every_rule_is_evaluated_without_an_error_and_none_fires(prometheus: Prometheus) -> None:
    settle(lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()))
    rules = {rule["name"]: rule for rule in prometheus.rules()}
    assert set(rules) == {alert.name for alert in ALERTS}
    for name, rule in rules.items():
        assert rule["health"] == "ok", rule.get("lastError")
        assert rule["state"] != "firing", f"{name}: {rule['alerts']}"


def test_the_models_of_metrics_are_those_that_exist(prometheus: Prometheus) -> None:
    found = {series["metric"]["model"] for series in prometheus.ask('count by (model) ({model!=""})')}
    assert found <= {*MODELS, *registered(prometheus)}
    assert "not-there" not in found
    missed = 'allm_errors_total{code="MODEL_NOT_FOUND",rpc="TextFacade.CreateEmbedding"}'
    settle(lambda: prometheus.ask(missed))
    assert {series["metric"].get("model", "") for series in prometheus.ask(missed)} <= {""}


def registered(prometheus: Prometheus) -> set[str]:
    """Returns the models that other tests may have registered with the shared stack."""
    found = prometheus.ask('count by (model) (allm_requests_total{rpc="ModelServicer.RegisterModel"})')
    return {series["metric"].get("model", "") for series in found}


def test_names_follow_the_conventions(stack: Stack) -> None:
    for name, url in stack.note["metrics"].items():
        if name == "gateway":
            continue  # Envoy chooses its own names
        with urllib.request.urlopen(url, timeout=30) as reply:
            page = reply.read()
        checked = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr, checked.stdout) == (0, b"", b""), name
        assert not re.search(rb"_created\b", page), "every counter would have a series more"


def test_series_of_a_model_end_with_it(stack: Stack) -> None:
    """A request is cut off when its model is removed, and ends only afterwards."""
    passing = "passing"
    pages = [stack.note["metrics"][name] for name in ("text", "catalog")]

    def mentions() -> list[bool]:
        replies = [urllib.request.urlopen(page, timeout=30) for page in pages]
        return [f'"{passing}"' in reply.read().decode() for reply in replies]

    with openai.OpenAI(base_url=stack.base_url, api_key="none", max_retries=0) as client:
        client.post(
            "/models", cast_to=object, body={"id": passing, "source": f"file://{demo_model()}", "format": "gguf"}
        )
        settle(lambda: passing in {model.id for model in client.models.list()})
        said = [{"role": "user", "content": "Count."}]
        stream = client.chat.completions.create(model=passing, messages=said, max_tokens=40, stream=True)
        next(iter(stream))
        assert mentions() == [True, True]
        client.models.delete(passing)
        for _ in stream:
            pass
    settle(lambda: mentions() == [False, False])
