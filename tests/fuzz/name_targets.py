"""Listings of hubs, model names from operators and callers, and the typed API's messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any

import httpx2
import huggingface_hub
from allm.audio.v1 import transcription_service_pb2
from allm.image.v1 import image_service_pb2
from allm.models.v1 import manifest_pb2, model_service_pb2
from allm.text.v1 import chat_service_pb2, response_pb2
from google.protobuf.message import DecodeError, Message

from services.audio.api import messages as transcription_messages
from services.catalog.api import messages as catalog_messages
from services.catalog.registration import validation
from services.catalog.registration.hub_choice import parse_reference
from services.catalog.registration.marked_yaml import Wrong
from services.catalog.registration.models_file import read_models
from services.errors import AllmError
from services.image.api import messages as image_messages
from services.models.descriptor import FORMATS
from services.models.hub import repository as hub
from services.models.hub.names import known_name
from services.models.hub.search import search_hub
from services.models.hub.source import HubSource, parse_source
from services.models.wire import read_manifest
from services.text.api.chat import servicer as chat_servicer
from services.text.api.responses import messages as response_messages
from tests.fuzz.fuzz_target import FuzzTarget

# A single answer is enough: a target runs one case at a time.
_ANSWER: list[tuple[int, list[tuple[bytes, ...]], bytes]] = []
LISTING_WORDS = tuple(
    f'"{word}"'.encode()
    for word in ("sha", "siblings", "rfilename", "size", "lfs", "sha256", "../x", "a/b", "C:", "a" * 64)
)

SEARCH_WORDS = tuple(
    f'"{word}"'.encode()
    for word in ("id", "a/b", "tags", "license:mit", "diffusers:FluxPipeline", "gguf", "config", "gated", "downloads")
)
NAME_WORDS = (b"hf://a/b@main#c.gguf", b"hf.co/a/b:Q8_0", b"file:///", b"%2e%2e", b"@", b"#")
MODELS_WORDS = (
    b"models:\n  - id: ",
    b"\n    source: hf://a/b",
    b"\n    format: gguf",
    b"loras:",
    b"&a",
    b"*a",
    b"<<",
    b"!!python",
)


def _take_answer(case: bytes) -> None:
    """Reads a status, headers and a body: the hub's answer to every request."""
    head, _, body = case.partition(b"\n\n")
    status, *lines = head.split(b"\n")
    code = int(status) if status.isdigit() and len(status) == 3 and status >= b"200" else 200
    headers = [tuple(line.split(b": ", 1)) for line in lines if b": " in line]
    _ANSWER[:] = [(code, headers, body)]


def _hub(case: bytes) -> None:
    """Lists and reads a repository."""
    _take_answer(case)
    tree = hub.HubTree.open_repository(_session())
    for path, file in list(tree.files.items())[:3]:
        assert file.size >= 0
        assert ".." not in path.split("/")
        with tree.open(path) as opened:
            opened.read(100)
            opened.seek(max(0, file.size - 50))
            opened.read(100)


def _hub_search(case: bytes) -> None:
    """Searches the hub, in each format."""
    _take_answer(case)
    _session()
    for format in FORMATS:
        for found in search_hub("m", format, 5):
            parse_source(f"hf://{found.name}", [])
            assert found.downloads >= 0
            assert (found.license + found.task + found.architecture + found.quantization).isprintable()


def _answer(request: httpx2.Request) -> httpx2.Response:
    code, headers, body = _ANSWER[0]
    try:
        return httpx2.Response(code, headers=headers, content=body, request=request)
    except (ValueError, LookupError) as error:  # the real network reader would refuse it
        raise httpx2.RemoteProtocolError("no HTTP") from error


@cache
def _session() -> HubSource:
    """Connects the hub library to the fake hub, and returns a source to open."""
    transport = httpx2.MockTransport(_answer)
    huggingface_hub.set_client_factory(lambda: httpx2.Client(transport=transport, follow_redirects=True))
    return HubSource("org/model", "main", "")


def _names(case: bytes) -> None:
    """Reads lines: an id, a source, aliases."""
    lines = case.decode(errors="replace").split("\n")
    try:
        source = parse_source(lines[1] if len(lines) > 1 else "", [])
    except AllmError:
        pass
    else:
        assert isinstance(source, HubSource), "no folder is below no root"
    with contextlib.suppress(AllmError):
        parse_source(parse_reference(known_name(lines[0], lambda name: False)).source, [])
    validation.check_id(lines[0])
    assert "//" not in lines[0]
    validation.check_aliases(lines[2:], lines[0])


def _models_file(case: bytes) -> None:
    """Reads an operator's file, which may be half written."""
    found = read_models(case)
    ids = [declaration.id for declaration in found.declarations]
    assert len(ids) == len(set(ids)) <= len(found.named)
    for problem in found.problems:
        assert problem.line >= 1
    for declaration in found.declarations:
        assert declaration.problem("source", "no").line >= 1


MESSAGES: tuple[tuple[type[Message], Callable[[Any], object]], ...] = (
    (chat_service_pb2.CreateChatCompletionRequest, chat_servicer.read_request),
    (image_service_pb2.GenerateImageRequest, image_messages.read_generate),
    (image_service_pb2.EditImageRequest, lambda message: image_messages.read_edit(message, 100)),
    (transcription_service_pb2.TranscriptionConfig, lambda message: transcription(message, live=False)),
    (transcription_service_pb2.TranscriptionConfig, lambda message: transcription(message, live=True)),
    (model_service_pb2.ReportModelStatusRequest, catalog_messages.read_report),
    (response_pb2.Item, lambda message: response_messages.read_item(message, "items")),
    (manifest_pb2.Manifest, read_manifest),
    (image_service_pb2.StreamEditImageRequest, lambda message: image_messages.read_edit(message, 100)),
)


def transcription(config: transcription_service_pb2.TranscriptionConfig, *, live: bool) -> None:
    """Reads a configuration as the servicer does."""
    transcription_messages.read_config(config, "transcribe", live=live)
    transcription_messages.read_raw(config)


def _typed(case: bytes) -> None:
    """Reads a byte that chooses the message type, and the message."""
    if not case:
        return
    kind, read = MESSAGES[case[0] % len(MESSAGES)]
    message = kind()
    try:
        message.ParseFromString(case[1:])
    except DecodeError:
        return
    read(message)


NAME_TARGETS = (
    FuzzTarget("hub", _hub, words=LISTING_WORDS, cases=600),
    FuzzTarget("hub-search", _hub_search, words=SEARCH_WORDS),
    FuzzTarget("names", _names, words=NAME_WORDS, longest=4096),
    FuzzTarget("models-file", _models_file, declared=(Wrong,), words=MODELS_WORDS),
    FuzzTarget("typed-message", _typed, cases=2000),
)
