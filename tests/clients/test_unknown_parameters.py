"""Unknown parameters of every REST endpoint that takes parameters, through the real gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
from google.api.annotations_pb2 import http as HTTP  # noqa: N812 - an extension, not a module

from gateway.descriptor import transcoded_descriptors
from tests.case import case
from tests.stack import MODEL, Stack, environment

HEADER = "x-allm-ignored-parameters"
PATIENCE_SECONDS = 60.0
UNKNOWN = {"temprature": 1, "user_tags": None}
# The paths' own parameters. Some requests fail after they were read: errors have the header, too.
JSON: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/completions": {"model": MODEL, "prompt": "Hi", "max_tokens": 1},
    "/v1/embeddings": {"model": "nowhere", "input": "Hi"},
    "/v1/rerank": {"model": "nowhere", "query": "a", "documents": ["b"]},
    "/v2/rerank": {"model": "nowhere", "query": "a", "documents": ["b"]},
    "/v1/score": {"model": "nowhere", "text_1": "a", "text_2": "b"},
    "/v1/responses": {"model": MODEL, "input": "Hi", "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"model": MODEL, "input": "Hi"},
    "/v1/conversations": {"metadata": {"topic": "demo"}},
    "/v1/conversations/{conversation_id}": {"metadata": {}},
    "/v1/conversations/{conversation_id}/items": {"items": [{"role": "user", "content": "Hi"}]},
    "/v1/images/generations": {"model": "nowhere", "prompt": "a circle"},
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {  # the name of the file, the fields
    "/v1/audio/transcriptions": ("file", {"model": "nowhere", "chunking_strategy[type]": "server_vad"}),
    "/v1/audio/translations": ("file", {"model": "nowhere", "prompt": "p"}),
    "/v1/images/edits": ("image", {"model": "nowhere", "prompt": "a circle"}),
    "/v1/images/variations": ("image", {"model": "nowhere", "size": "64x64"}),
}


def replies(stack: Stack, key: str = "unused") -> dict[str, httpx.Response]:
    """Sends unknown parameters to every endpoint."""
    headers, found = {"authorization": f"Bearer {key}"}, {}
    with httpx.Client(base_url=f"http://127.0.0.1:{stack.port}", headers=headers, timeout=PATIENCE_SECONDS) as client:
        made = client.post("/v1/conversations", json={}).json()["id"]
        for path, body in JSON.items():
            found[path] = client.post(path.replace("{conversation_id}", made), json={**body, **UNKNOWN})
        for path, (name, fields) in FORMS.items():
            sent = {**fields, "temprature": "1", "user_tags": "null", "hints[]": ["a", "b"]}
            files = {name: ("a.bin", b"x"), "unknown_file": ("b.bin", b"x")}
            found[path] = client.post(path, data=sent, files=files)
    return found


def test_all_endpoints_with_parameters_are_tried() -> None:
    """Nobody can add an endpoint that forgets them."""
    posted = set()
    for file in transcoded_descriptors().file:
        for service in file.service if file.package == "allm.openai.v1" else ():
            rules = [method.options.Extensions[HTTP] for method in service.method]
            posted |= {each.post for rule in rules for each in (rule, *rule.additional_bindings) if each.post}
    assert posted - {"/v1/responses/{response_id}/cancel"} == {*JSON, *FORMS}


def test_they_are_named_in_the_response(stack: Stack) -> None:
    for path, reply in replies(stack).items():
        named = ["temprature", "hints[]", "unknown_file"] if path in FORMS else ["temprature"]
        with case(path=path, status=reply.status_code, body=reply.text[:300]):
            assert reply.headers[HEADER].split(", ") == named
            assert (reply.status_code, "nowhere" in reply.text) in ((200, False), (404, True))


def test_they_are_refused_where_the_operator_wants_it(guarded: Stack) -> None:
    command = [sys.executable, "-m", "services.cli", "keys", "create", "strict", "--scope", "inference", "--json"]
    environ = environment(guarded.home)
    made = json.loads(subprocess.run(command, env=environ, capture_output=True, check=True, timeout=60).stdout)
    found = replies(guarded, made["secret"])
    for path, reply in found.items():
        if reply.status_code == 503 and path.startswith(("/v1/audio", "/v1/images")):
            continue  # this stack has neither service
        with case(path=path, status=reply.status_code, body=reply.text[:300]):
            assert reply.status_code == 400
            assert reply.json()["error"]["param"] == "temprature"
