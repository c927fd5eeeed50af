"""The requests of Home Assistant and Open WebUI, replayed in the shape in which these programs send them.

Home Assistant uses the official package (homeassistant/components/ollama); Open WebUI forwards JSON of its own
(backend/open_webui/routers/ollama.py). Neither program runs here.
"""

from __future__ import annotations

import http.client
import json
import re
from contextlib import closing
from datetime import datetime
from typing import Any

import ollama
import pytest

from tests.minilm import ENCODER, SIZE
from tests.stack import MODEL, Stack

TAGGED = f"{MODEL}:latest"
# A tool of Home Assistant's, as it converts its schemas.
TURN_ON = {
    "type": "function",
    "function": {
        "name": "HassTurnOn",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "domain": {"type": "array", "items": {"type": "string"}},
                "area": {"type": "string", "nullable": True},
            },
            "required": [],
        },
        "description": "Turns on, opens or presses a device or entity",
    },
}


async def test_home_assistant(stack: Stack) -> None:
    """It lists models to check the connection, and talks in streams with a context, a keep_alive and without ids."""
    async with ollama.AsyncClient(f"http://127.0.0.1:{stack.port}", headers=None) as client:
        assert TAGGED in {model["model"] for model in (await client.list()).get("models", [])}
        turns: list[Any] = [
            ollama.Message(role="system", content="You are a voice assistant for Home Assistant."),
            ollama.Message(role="user", content="Turn on the light.", images=None),
        ]
        for keep_alive, think in ((-1, False), ("300s", None)):
            stream = await client.chat(
                model=TAGGED,
                messages=list(turns),
                tools=[TURN_ON],
                stream=True,
                keep_alive=keep_alive,
                options={"num_ctx": 8192, "num_predict": 4, "temperature": 0},
                think=think,
                format=None,
            )
            parts = [part async for part in stream]
            assert "".join(part["message"].get("content") or "" for part in parts)
            assert parts[-1].done
            function = ollama.Message.ToolCall.Function(name="HassTurnOn", arguments={"name": "light"})
            calls = [ollama.Message.ToolCall(function=function)]
            turns.append(ollama.Message(role="assistant", content=None, tool_calls=calls))
            turns.append(ollama.Message(role="tool", content='{"data":{"success":[]},"error":null}'))
        assert all(model.expires_at for model in (await client.ps()).models)
        structure = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
        options = {"num_predict": 40, "temperature": 0}
        asked = await client.chat(TAGGED, turns[:2], format=structure, options=options, stream=True)
        text = "".join([part.message.content or "" async for part in asked])
        assert isinstance(json.loads(text)["on"], bool)


class OpenWebUi:
    """Sends what Open WebUI sends, with its headers."""

    def __init__(self, stack: Stack) -> None:
        self._port = stack.port

    def send(self, method: str, path: str, body: object = None) -> tuple[int, str, bytes]:
        """Returns the status, the content type and the body."""
        headers = {"content-type": "application/json", "X-OpenWebUI-User-Name": "Ann", "X-OpenWebUI-User-Role": "admin"}
        data = None if body is None else json.dumps(body).encode()
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request(method, path, data, headers)
            with closing(connection.getresponse()) as response:
                return response.status, response.headers["content-type"], response.read()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        status, _, data = self.send(method, path, body)
        assert status == 200, data
        return json.loads(data)


@pytest.fixture
def webui(stack: Stack) -> OpenWebUi:
    return OpenWebUi(stack)


def test_open_webui_finds_models(stack: Stack, webui: OpenWebUi) -> None:
    """It adds the tag `latest` to names without one, and looks the result up in the list."""
    version = webui.ask("GET", "/api/version")["version"]
    assert tuple(map(int, re.sub(r"^v|-.*", "", version).split("."))) > (0, 6, 0)
    for path in ("/api/version", "/api/tags"):
        assert webui.send("HEAD", path) == (200, "application/json", b""), "Ollama answers these probes"
    models = {model["model"]: model for model in webui.ask("GET", "/api/tags")["models"]}
    assert {TAGGED, f"{ENCODER}:latest"} <= models.keys()
    assert {"name", "modified_at", "size", "digest", "details"} <= models[TAGGED].keys()
    webui.ask("POST", "/api/generate", {"model": TAGGED})

    def loaded() -> Any:
        return {model["name"]: model for model in webui.ask("GET", "/api/ps")["models"]}.get(TAGGED)

    assert datetime.fromisoformat(stack.until(loaded)["expires_at"]).timestamp() > 0
    assert webui.ask("POST", "/api/show", {"model": TAGGED, "name": TAGGED})["details"]["format"] == "gguf"


def test_open_webui_chats_embeds_and_unloads(webui: OpenWebUi) -> None:
    options = {"temperature": 0, "num_ctx": 2048, "num_predict": 4, "mirostat": 0, "stop": ["</s>"], "num_thread": 2}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi", "images": []}]
    asked = {"model": TAGGED, "messages": messages, "options": options, "stream": True, "keep_alive": "5m"}
    status, kind, data = webui.send("POST", "/api/chat", asked)
    assert (status, kind) == (200, "application/x-ndjson")
    *parts, last = [json.loads(line) for line in data.splitlines()]
    assert "".join(part["message"]["content"] for part in parts)
    assert last["done"] and last["eval_count"] / (last["eval_duration"] / 1e9) > 0
    embedded = webui.ask("POST", "/api/embed", {"model": f"{ENCODER}:latest", "input": ["a", "b"], "truncate": True})
    assert [len(vector) for vector in embedded["embeddings"]] == [SIZE, SIZE]
    unloaded = webui.ask("POST", "/api/generate", {"model": TAGGED, "keep_alive": 0, "prompt": ""})
    assert (unloaded["done"], unloaded["done_reason"]) == (True, "unload")
    status, _, data = webui.send("POST", "/api/chat", {**asked, "model": "gone:latest"})
    assert (status, json.loads(data)["error"]) == (404, "The model `gone` does not exist.")
    status, _, data = webui.send("POST", "/api/pull", {"model": "llama3.2", "insecure": True})
    assert status == 400
    assert "hf.co/ORG/NAME" in json.loads(data)["error"]
