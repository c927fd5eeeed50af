"""A running stack from an operator's side: registers models over REST and waits for their states."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.loopback_hub import LoopbackHub
from tests.stack import POLL_SECONDS, Stack, running_stack

PATIENCE_SECONDS = 90
QUESTION = "What is the capital of France?"


@dataclass(frozen=True)
class Reply:
    """A whole HTTP response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def model(self) -> dict[str, Any]:
        """Returns the model in the answer of a management verb."""
        assert self.status == 200, self
        model: dict[str, Any] = self.json["model"]
        return model

    @property
    def error(self) -> dict[str, Any]:
        """Returns OpenAI's error object; fails for any other body."""
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, self
        return error

    @property
    def text(self) -> str:
        """Returns the assistant's text."""
        assert self.status == 200, self
        text: str = self.json["choices"][0]["message"]["content"]
        return text


@dataclass(frozen=True)
class Operator:
    """The operator of a stack's models. `root` is one of its ALLM_MODEL_ROOTS."""

    stack: Stack
    root: Path

    def call(self, method: str, path: str, body: object = None) -> Reply:
        """Sends one request over its own connection."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if data else {}
        with closing(http.client.HTTPConnection("127.0.0.1", self.stack.port, timeout=PATIENCE_SECONDS)) as connection:
            connection.request(method, path, data, headers)
            with closing(connection.getresponse()) as response:
                return Reply(response.status, response.headers, response.read())

    def register(self, model_id: str, source: str | Path, format: str, **more: object) -> Reply:
        """Sends POST /v1/models; a path becomes a file:// source."""
        text = source.as_uri() if isinstance(source, Path) else source
        return self.call("POST", "/v1/models", {"id": model_id, "source": text, "format": format, **more})

    def taken(self, model_id: str, source: str | Path, format: str, **more: object) -> dict[str, Any]:
        """Registers a model and checks that it was accepted; returns it."""
        reply = self.register(model_id, source, format, **more)
        assert reply.status == 200, reply
        return reply.model

    def refused(self, model_id: str, source: str | Path, format: str, **more: object) -> str:
        """Registers a model and checks that it was refused with 400 and left no trace; returns the message."""
        reply = self.register(model_id, source, format, **more)
        assert reply.status == 400, reply
        assert reply.error["type"] == "invalid_request_error"
        assert model_id not in self.all()
        message: str = reply.error["message"]
        return message

    def verb(self, model_id: str, verb: str, body: object = None) -> Reply:
        """Sends POST /v1/models/{id}:verb."""
        return self.call("POST", f"/v1/models/{urllib.parse.quote(model_id)}:{verb}", {} if body is None else body)

    def delete(self, model_id: str) -> Reply:
        return self.call("DELETE", f"/v1/models/{urllib.parse.quote(model_id, safe='')}")

    def ready(self) -> list[str]:
        """Returns the ids that GET /v1/models lists."""
        return [model["id"] for model in self.call("GET", "/v1/models").json["data"]]

    def all(self) -> dict[str, dict[str, Any]]:
        """Returns the models of GET /v1/models?state=all, by id."""
        return {model["id"]: model for model in self.call("GET", "/v1/models?state=all").json["data"]}

    def until(self, condition: Callable[[], Any]) -> Any:
        """Waits until a condition is true, and returns its value."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := condition()):
            assert time.monotonic() < deadline, (self.all(), self.stack.output())
            time.sleep(POLL_SECONDS)
        return found

    def until_state(self, model_id: str, *states: str) -> dict[str, Any]:
        """Waits until a model has one of these states."""
        model: dict[str, Any] = self.until(
            lambda: found if (found := self.all()[model_id])["state"] in states else None
        )
        return model

    def chat(self, model_id: str, content: str = QUESTION, **parameters: object) -> Reply:
        """Sends a short chat at temperature 0."""
        messages = [{"role": "user", "content": content}]
        body = {"model": model_id, "temperature": 0, "max_tokens": 16, "messages": messages, **parameters}
        return self.call("POST", "/v1/chat/completions", body)

    def answer(self, model_id: str) -> str:
        """Returns a model's answer to QUESTION."""
        reply = self.chat(model_id)
        assert reply.status == 200, (reply, self.stack.output())
        text: str = reply.json["choices"][0]["message"]["content"]
        return text


@contextmanager
def operating(home: Path, hub: LoopbackHub, **settings: str) -> Iterator[Operator]:
    """Runs a separate stack, which knows the hub and may read `home / models-here`."""
    root = home / "models-here"
    root.mkdir(parents=True)
    environ = {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home / "hf"),
        "ALLM_MODEL_ROOTS": str(root),
        **settings,
    }
    with running_stack(home / "allm", **environ) as stack:
        yield Operator(stack, root)
