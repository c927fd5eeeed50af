"""Replacements for the suite's made-up ids: real models and responses, created before they are requested."""

from __future__ import annotations

import secrets
import time
from functools import cached_property
from typing import Any

from openai import OpenAI
from suite_rules import EMBED, TOKENS

PATIENCE_SECONDS = 60
POLL_SECONDS = 0.05
LONG = 4000  # tokens: enough to be running still when it is cancelled


class StandIns:
    """Creates the objects that the suite requests, through an unmodified client.

    `source` is a small model file that may be registered.
    """

    def __init__(self, client: OpenAI, model: str, embedder: str, source: str) -> None:
        self._client, self._model, self._embedder, self._source = client, model, embedder, source

    def of(self, route: str) -> str:
        """Returns the id for a path. An object to delete or cancel is created for this request alone."""
        match route:
            case "GET /models/{id}":
                return self._model
            case "DELETE /models/{id}":
                return self._registered()
            case "DELETE /responses/{id}":
                return self._client.responses.create(model=self._model, input="Hi", max_output_tokens=1).id
            case "POST /responses/{id}/cancel":
                return self._background(LONG)
        return self._kept

    def named(self, param: str, route: str) -> str:
        """Returns the value of a parameter that names an object."""
        if param == "model":
            return self._embedder if route == EMBED else self._model
        return self._kept if param == "previous_response_id" else self._item

    def filled(self, value: Any) -> Any:
        """Returns a value of the table with the model's name filled in."""
        return value.format(model=self._model) if isinstance(value, str) else value

    @cached_property
    def _kept(self) -> str:
        """A response with stored events, so that it can be streamed again."""
        response = self._background(TOKENS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (status := self._client.responses.retrieve(response).status) in ("queued", "in_progress"):
            assert time.monotonic() < deadline, status
            time.sleep(POLL_SECONDS)
        assert status in ("completed", "incomplete")
        return response

    @cached_property
    def _item(self) -> str:
        return self._client.responses.input_items.list(self._kept).data[0].id

    def _background(self, tokens: int) -> str:
        events = self._client.responses.create(
            model=self._model,
            input=[{"role": "user", "content": "Hi"}, {"role": "user", "content": "Count."}],
            background=True,
            stream=True,
            max_output_tokens=tokens,
            extra_body={"ignore_eos": True},
        )
        with events:
            first = next(iter(events))
        assert first.type in ("response.created", "response.queued")
        return first.response.id

    def _registered(self) -> str:
        name = f"conformance-{secrets.token_hex(4)}"
        body = {"id": name, "source": self._source, "format": "gguf"}
        self._client.post("/models", body=body, cast_to=object)
        return name
