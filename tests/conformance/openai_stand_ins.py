"""Real models and responses for the invented ones of the OpenAI SDK's tests, created when they are needed."""

from __future__ import annotations

import secrets
import time
from functools import cached_property
from typing import Any

from openai import OpenAI
from openai_rules import COMPLETE, CONVERSE, EMBED, RESPOND, TOKENS

PATIENCE_SECONDS = 60
POLL_SECONDS = 0.05
LONG = 4000  # tokens: enough to be running still when it is cancelled
# The parameters that limit an answer's length, for requests that leave it open.
_LENGTHS = {
    RESPOND: ("max_output_tokens",),
    CONVERSE: ("max_completion_tokens", "max_tokens"),
    COMPLETE: ("max_tokens",),
}


class StandIns:
    """Creates the objects that the suite requests, through an unmodified client.

    `source` is a small model file that may be registered.
    """

    def __init__(self, client: OpenAI, model: str, embedder: str, source: str) -> None:
        self._client, self._model, self._embedder, self._source = client, model, embedder, source
        self._named = ("", "")  # the conversation of the current request, and its item

    def of(self, route: str, kind: str) -> str:
        """Returns the id of a `kind` for a path. An object to delete or cancel is created for this request alone."""
        if kind in ("items", "conversations"):
            return self._of_conversation(route, kind)
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

    def substitute(self, asked: dict[str, Any], route: str, *, strict: bool) -> None:
        """Inserts real ids, a limit where the suite leaves an answer's length open, and vectors that can be checked."""
        for name in ("model", "previous_response_id", "after"):
            if name in asked:
                asked[name] = self._value(name, route)
        lengths = _LENGTHS.get(route, ())
        if lengths and not any(name in asked for name in lengths):
            asked[lengths[0]] = TOKENS
        # By default the SDK requests base64 and decodes it later; its strict clients check the type before that.
        if strict and asked.get("encoding_format") == "base64":
            asked["encoding_format"] = "float"

    def _value(self, param: str, route: str) -> str:
        if param == "model":
            return self._embedder if route == EMBED else self._model
        if param == "after" and "/conversations/" in route:
            return self._talk[1]
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
    def _talk(self) -> tuple[str, str]:
        return self._conversation()

    def _of_conversation(self, route: str, kind: str) -> str:
        """Returns the id of a conversation, and then of its item; what a request deletes was made for it."""
        if kind == "conversations":
            self._named = self._conversation() if route.startswith("DELETE") else self._talk
        return self._named[kind == "items"]

    def _conversation(self) -> tuple[str, str]:
        """Creates a conversation; returns its id and that of its only item."""
        message: Any = {"type": "message", "role": "user", "content": "Hi"}
        made = self._client.conversations.create(items=[message])
        return made.id, self._client.conversations.items.list(made.id).data[0].id

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
