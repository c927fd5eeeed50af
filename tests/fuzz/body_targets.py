"""JSON bodies of the facades, and the core's processing of them before a model sees them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec
from google.api import httpbody_pb2

from services.errors import AllmError
from services.image.api import openai as images
from services.rest.openai.body import json_body
from services.text.api import completions, embeddings
from services.text.api.chat import openai_request as chat
from services.text.api.messages import anthropic_request as messages
from services.text.api.ollama import ollama_request as ollama
from services.text.api.ollama.ollama_options import keep_alive_of, unknown_options, unused_options
from services.text.api.responses import openai_request as responses
from services.text.chat import grammar_of
from services.text.conversation import ChatRequest
from services.text.parsers import dialect as dialects
from services.text.picture_urls import file_of
from tests.fuzz.fuzz_target import FuzzTarget
from tests.text.checked_request import checked_request

WORDS = tuple(
    f'"{word}"'.encode()
    for word in (
        *("model", "messages", "role", "user", "system", "assistant", "tool", "content", "text", "type", "tools"),
        *("function", "name", "parameters", "strict", "tool_choice", "required", "none", "tool_calls", "arguments"),
        *("response_format", "json_schema", "schema", "n", "stop", "logit_bias", "logprobs", "top_logprobs", "seed"),
        *("max_tokens", "temperature", "top_p", "stream", "stream_options", "metadata", "input", "instructions"),
        *("function_call_output", "call_id", "previous_response_id", "reasoning", "effort", "prompt", "suffix", "echo"),
        *(
            "thinking",
            "enabled",
            "budget_tokens",
            "tool_use",
            "tool_result",
            "input_schema",
            "id",
            "tool_use_id",
            "any",
        ),
        *("image_url", "input_image", "image", "source", "url", "detail", "data:image/png;base64,aGk=", "/v1/images"),
        *("options", "num_predict", "num_ctx", "keep_alive", "think", "format", "json", "raw", "tool_name", "images"),
        *("best_of", "dimensions", "encoding_format", "base64", "size", "1x1", "quality", "output_format", "steps"),
    )
)


def _told(read: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """Runs a reader, and checks that its error can be encoded: as a response body, and in a header."""

    def run(case: bytes) -> None:
        try:
            read(case)
        except AllmError as error:
            msgspec.json.decode(json_body({"error": error.openai_object()}).data)
            assert len(error.message.encode()) <= 1100, "an error fits a header"
            raise

    return run


def _body(case: bytes) -> httpbody_pb2.HttpBody:
    return httpbody_pb2.HttpBody(content_type="application/json", data=case)


def _chat(case: bytes) -> None:
    request = checked_request(chat.read_request(_body(case))[1])
    for message in request.messages:
        for picture in message.pictures:
            assert 0 <= picture.at <= len(message.content)
            with contextlib.suppress(ValueError):
                assert file_of(picture.url) is None or picture.url[:5].lower() == "data:"
    for dialect in (dialects.HERMES, dialects.HARMONY, dialects.QWEN_XML):
        for reasoning_open in (False, True):
            assert isinstance(grammar_of(request, dialect, reasoning_open=reasoning_open), str)


def _message(case: bytes) -> None:
    checked_request(messages.read_request(_body(case), messages.CreateBody)[1])


def _ollama(case: bytes) -> None:
    for reader in (ollama.read_chat, ollama.read_generate, ollama.read_embed, ollama.read_embed_prompt):
        try:
            given, request = reader(_body(case))
        except AllmError:
            if reader is ollama.read_embed_prompt:
                raise
            continue
        assert len([*unused_options(given.options), *unknown_options(given.options)]) <= len(given.options or ())
        keep_alive_of(given.keep_alive)
        if isinstance(request, ChatRequest):
            checked_request(request)


def _read(reader: Callable[[httpbody_pb2.HttpBody], object]) -> Callable[[bytes], None]:
    return _told(lambda case: reader(_body(case)))


BODY_TARGETS = (
    FuzzTarget("chat-json", _told(_chat), words=WORDS, cases=1000),
    FuzzTarget("responses-json", _read(responses.read_request), words=WORDS, cases=1000),
    FuzzTarget("messages-json", _told(_message), words=WORDS, cases=1000),
    FuzzTarget("ollama-json", _told(_ollama), words=WORDS, cases=1000),
    FuzzTarget("completions-json", _read(completions.read_request), words=WORDS, cases=1000),
    FuzzTarget("embeddings-json", _read(embeddings.read_request), words=WORDS, cases=1000),
    FuzzTarget("images-json", _read(images.read_generation), words=WORDS, cases=1000),
)
