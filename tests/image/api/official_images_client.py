"""The official SDK in front of the image facade: splits requests as the gateway does; the SDK parses the answers."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import grpc
import httpx2
from allm.openai.v1 import error_pb2, image_service_pb2, image_service_pb2_grpc
from google.api import httpbody_pb2
from openai import AsyncOpenAI

FORMS = {"/v1/images/edits": "CreateImageEdit", "/v1/images/variations": "CreateImageVariation"}
FILES = "/v1/images/files/"
DETAILS = "grpc-status-details-bin"


def official_client(channel: grpc.aio.Channel) -> AsyncOpenAI:
    """Returns a client whose requests go to the facade behind `channel`, without a gateway."""
    return AsyncOpenAI(base_url="http://allm/v1", api_key="sk-none", max_retries=0, http_client=http_client(channel))


def http_client(channel: grpc.aio.Channel) -> httpx2.AsyncClient:
    """Returns the same as a plain HTTP client."""
    stub = image_service_pb2_grpc.ImagesServiceStub(channel)

    async def handle(request: httpx2.Request) -> httpx2.Response:
        path, data = request.url.path, await request.aread()
        if path.startswith(FILES):
            call = stub.GetImageFile(image_service_pb2.GetImageFileRequest(name=path.removeprefix(FILES)))
        elif path in FORMS:
            call = getattr(stub, FORMS[path])(_messages(data, request.headers["content-type"]))
        else:
            body = httpbody_pb2.HttpBody(content_type=request.headers["content-type"], data=data)
            call = stub.CreateImage(body)
        answers = aiter(call)
        try:
            first = await anext(answers)
        except grpc.aio.AioRpcError as error:
            return _failed(error)
        headers = {name: str(value) for name, value in await call.initial_metadata()}
        headers["content-type"] = first.content_type
        return httpx2.Response(200, headers=headers, content=_content(first, answers))

    return httpx2.AsyncClient(transport=httpx2.MockTransport(handle))


async def _messages(data: bytes, content_type: str) -> AsyncIterator[httpbody_pb2.HttpBody]:
    chance = random.Random(len(data))  # noqa: S311
    cuts = sorted(chance.randrange(len(data)) for _ in range(5))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        yield httpbody_pb2.HttpBody(content_type=content_type if start == 0 else "", data=data[start:end])


async def _content(first: httpbody_pb2.HttpBody, others: AsyncIterator[httpbody_pb2.HttpBody]) -> AsyncIterator[bytes]:
    yield first.data
    try:
        async for message in others:
            yield message.data
    except grpc.aio.AioRpcError:
        return  # the gateway sends REST clients no error after the first message: the facade must do that


def _failed(error: grpc.aio.AioRpcError) -> httpx2.Response:
    """Formats the error as the gateway does."""
    metadata = dict(error.trailing_metadata() or ())
    reported = error_pb2.ErrorStatus.FromString(metadata[DETAILS]).error
    body = {
        "message": reported.message,
        "type": reported.type,
        "param": reported.param.string_value or None,
        "code": reported.code.string_value or None,
    }
    headers = {"retry-after": str(metadata["retry-after"])} if "retry-after" in metadata else {}
    return httpx2.Response(int(metadata["x-http-status"]), headers=headers, json={"error": body})
