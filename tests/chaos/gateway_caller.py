"""Requests through the gateway, one method per kind, that check their answers to the last word.

Each returns when its answer is right, and raises RefusedCall, CutCall or LostAnswer. Every request has a separate
connection, so that a broken connection affects only one request.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import AsyncIterator

import grpc
import httpx
from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc

from tests.chaos.client_errors import call_refusal, refusal
from tests.chaos.known_answers import PICTURE, KnownAnswers
from tests.chaos.outcome import CutCall, LostAnswer
from tests.stack import MODEL, SPEECH_MODEL, Stack

OK = 200
CALL_SECONDS = 900.0  # of each step of a call: the caller's limit for the whole request is shorter
TEXT, WHOLE, TYPED, STORED, SOUND, PICTURES = "stream", "whole", "typed", "stored", "sound", "picture"
FETCHED, FRAIL = "fetched", "frail"  # kinds of streams, named after the models that faults affect


class GatewayCaller:
    """A caller of one stack. Create one for each event loop."""

    def __init__(self, stack: Stack, known: KnownAnswers) -> None:
        self._stack = stack
        self._known = known
        self._numbers = itertools.count(1)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(base_url=f"{stack.base_url}/", timeout=CALL_SECONDS, limits=limits)

    async def close(self) -> None:
        """Closes all connections."""
        await self._http.aclose()

    async def call(self, kind: str) -> None:
        """Sends one request of a kind."""
        calls = {WHOLE: self.whole, TYPED: self.typed, STORED: self.stored, SOUND: self.sound, PICTURES: self.picture}
        try:
            await (calls[kind]() if kind in calls else self.stream(MODEL if kind == TEXT else kind))
        except httpx.TransportError as error:
            raise CutCall(type(error).__name__) from error
        except grpc.aio.AioRpcError as error:
            raise call_refusal(error) from error

    async def stream(self, model: str = MODEL) -> None:
        """Streams with a schema that allows a single text, different for each request: no other answer can match."""
        number = next(self._numbers)
        text = " ".join(f"{number} is the number {number + step}." for step in range(self._known.sentences))
        schema = {"type": "object", "properties": {"text": {"const": text}}, "required": ["text"]}
        schema["additionalProperties"] = False
        reported = ""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": True,
            "max_tokens": 400,
            "response_format": {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}},
        }
        async with self._http.stream("POST", "chat/completions", json=body) as answer:
            if answer.status_code != OK:
                raise refusal(await answer.aread(), answer.status_code)
            async for chunk in _chunks(answer):
                reported += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        try:
            whole = json.loads(reported) == {"text": text}
        except ValueError:
            whole = False
        if not whole:
            raise LostAnswer(f"another text than asked for: {reported!r}")

    async def whole(self) -> None:
        """Requests a completion without streaming."""
        known = self._known.texts[next(self._numbers) % len(self._known.texts)]
        answer = await self._http.post("chat/completions", json=known.body)
        if answer.status_code != OK:
            raise refusal(answer.content, answer.status_code)
        _compare(answer.json()["choices"][0]["message"]["content"], known.text)

    async def stored(self) -> None:
        """Stores a response, and retrieves it."""
        known = self._known.texts[next(self._numbers) % len(self._known.texts)]
        body = {"model": MODEL, "input": known.prompt, "max_output_tokens": known.tokens, "temperature": 0}
        answer = await self._http.post("responses", json=body)
        if answer.status_code == OK:
            answer = await self._http.get(f"responses/{answer.json()['id']}")
        if answer.status_code != OK:
            raise refusal(answer.content, answer.status_code)
        _compare(answer.json()["output"][0]["content"][0]["text"], known.text)

    async def typed(self) -> None:
        """Streams over gRPC."""
        known = self._known.texts[next(self._numbers) % len(self._known.texts)]
        message = chat_pb2.ChatMessage(role=chat_pb2.CHAT_ROLE_USER, content=[chat_pb2.ContentPart(text=known.prompt)])
        sampling = chat_pb2.SamplingParameters(temperature=0, max_tokens=known.tokens)
        request = chat_service_pb2.StreamChatCompletionRequest(model=MODEL, messages=[message], sampling=sampling)
        reported, finished = "", False
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(self._stack.grpc_address, options=options) as channel:
            async for event in chat_service_pb2_grpc.ChatServiceStub(channel).StreamChatCompletion(request):
                reported += event.delta.text
                finished |= event.HasField("finished")
        if not finished:
            raise LostAnswer("a call that ended well without its last event")
        _compare(reported, known.text)

    async def sound(self) -> None:
        """Transcribes a clip."""
        clip = self._known.clip
        files = {"file": (clip.name, clip.read_bytes())}
        answer = await self._http.post("audio/transcriptions", data={"model": SPEECH_MODEL}, files=files)
        if answer.status_code != OK:
            raise refusal(answer.content, answer.status_code)
        if not self._known.hears(answer.json()["text"]):
            raise LostAnswer(f"another transcript: {answer.json()['text']!r}")

    async def picture(self) -> None:
        """Draws an image."""
        answer = await self._http.post("images/generations", json=PICTURE)
        if answer.status_code != OK:
            raise refusal(answer.content, answer.status_code)
        try:
            same = self._known.shows(base64.b64decode(answer.json()["data"][0]["b64_json"]))
        except (OSError, ValueError, LookupError) as error:
            raise LostAnswer(f"no picture: {error}") from error
        if not same:
            raise LostAnswer("another picture")


async def _chunks(answer: httpx.Response) -> AsyncIterator[dict]:
    """Yields the events of a stream. Raises LostAnswer when it ends without its last one."""
    async for line in answer.aiter_lines():
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return
        if "error" in (event := json.loads(data)):
            raise refusal(data.encode(), answer.status_code)
        yield event
    raise LostAnswer("a stream that ended without [DONE]")


def _compare(reported: str, known: str) -> None:
    if reported != known:
        raise LostAnswer(f"another text: {reported!r}, not {known!r}")
