"""Requests with pictures in every wire format, from the caller to the message for the worker, and in the store."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.openai.v1 import responses_service_pb2, responses_service_pb2_grpc
from allm.text.v1 import chat_pb2, chat_service_pb2, response_pb2, response_service_pb2
from PIL import Image

from services.auth.identity import ANONYMOUS
from services.pictures.image_files import ImageFiles
from services.settings.settings import load_settings
from services.text.engine.messages import Submit
from services.text.responses.sqlite_store import SqliteResponseStore
from tests.case import case
from tests.pictures.picture_files import file, halves
from tests.puppet_worker import PuppetWorker
from tests.stack import MODEL
from tests.text.puppet_service import PROMPT_TOKENS, READY, PuppetService, begin, end, puppet_service, rest, submitted

SEEING = replace(READY, sees=True)
IMAGE = halves(6, 4)
PNG = file(IMAGE)
DATA = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{DATA}"
WHERE = "messages[0].content[1]"
TEXT: dict[str, Any] = {"type": "text", "text": "a"}


def linked(url: str = URL, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def chat(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **more}


def anthropic(data: str = DATA) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": data}
    return chat(TEXT, {"type": "image", "source": source}, method="CreateMessage", max_tokens=5)


def ollama(data: str = DATA) -> dict[str, Any]:
    return {"method": "Chat", "messages": [{"role": "user", "content": "a", "images": [data]}], "stream": False}


def response(url: str = URL, **more: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": url, "detail": "low"}]
    return {"method": "CreateResponse", "input": [{"role": "user", "content": content}], **more}


def typed(data: bytes = PNG) -> chat_service_pb2.CreateChatCompletionRequest:
    image = chat_pb2.ImagePart(data=data, detail=chat_pb2.IMAGE_DETAIL_HIGH)
    content = [chat_pb2.ContentPart(text="a"), chat_pb2.ContentPart(image=image)]
    message = chat_pb2.ChatMessage(role=chat_pb2.CHAT_ROLE_USER, content=content)
    return chat_service_pb2.CreateChatCompletionRequest(model=MODEL, messages=[message])


# Each format with a picture after an `a` (Ollama's come first), with the picture's name in errors and its detail.
FORMATS: tuple[tuple[dict[str, Any], str, str], ...] = (
    (chat(TEXT, linked(detail="low")), f"{WHERE}.image_url.url", "low"),
    (anthropic(), f"{WHERE}.source.data", "auto"),
    (ollama(), "messages[0].images[0]", "auto"),
    ({"method": "Generate", "prompt": "a", "images": [DATA], "stream": False}, "images[0]", "auto"),
    (response(store=False), "input[0].content[1]", "low"),
)


def last(service: PuppetService) -> Submit:
    return submitted(service.workers[-1])[-1]


def shown(request: Submit) -> str:
    """Returns a request's prompt with `*` for each picture."""
    assert request.mark
    return str(request.prompt).replace(request.mark, "*")


async def refusal(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (rest(call) if hasattr(call, "read") else call)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    return caught.value.details() or ""


async def test_every_format_brings_its_picture_to_the_worker(folder: Path) -> None:
    async with puppet_service(folder, SEEING) as service:
        service.script = end
        for body, param, detail in FORMATS:
            with case(param=param):
                assert b"Paris" in await rest(service.post(**body))
                (pixels,) = last(service).pictures
                assert (pixels.width, pixels.height, pixels.pixels) == (6, 4, IMAGE.tobytes())
                assert (pixels.param, pixels.detail) == (param, detail)
                order = "*a" if "images" in param else "a*"
                assert shown(last(service)) == f"<|im_start|>user\n{order}<|im_end|>\n<|im_start|>assistant\n"
        await service.chat.CreateChatCompletion(typed())
        (pixels,) = last(service).pictures
        assert (pixels.pixels, pixels.param, pixels.detail) == (IMAGE.tobytes(), f"{WHERE}.image.data", "high")
        await rest(service.post(**chat(TEXT)))
        assert (last(service).pictures, last(service).mark) == ((), "")


async def test_counting_tokens_includes_pictures(folder: Path) -> None:
    async with puppet_service(folder, SEEING) as service:
        service.script = begin
        counted = {key: value for key, value in anthropic().items() if key not in ("method", "max_tokens")}
        for body in (
            {**counted, "method": "CountTokens"},
            {**response(), "method": "CountInputTokens"},
        ):
            with case(method=body["method"]):
                answer = await service.post(**body)
                assert json.loads(answer.data)["input_tokens"] == PROMPT_TOKENS
                assert len(last(service).pictures) == 1


async def test_a_model_that_does_not_see_refuses_by_name(folder: Path) -> None:
    store = await SqliteResponseStore.open(folder / "responses.db", 1)
    async with puppet_service(folder, kept=store) as service:
        for body, param, _ in (*FORMATS, (response(background=True), "input[0].content[1]", "")):
            with case(param=param):
                assert await refusal(service.post(**body)) == f"'{param}': {MODEL} does not see pictures."
        param = f"{WHERE}.image.data"
        assert await refusal(service.chat.CreateChatCompletion(typed())) == f"'{param}': {MODEL} does not see pictures."
        assert not service.workers, "no model is loaded to be refused"


async def test_bad_pictures_are_refused_by_name(folder: Path) -> None:
    text = base64.b64encode(b"no picture").decode()
    async with puppet_service(folder, SEEING) as service:
        for bad, reason in ((f"{DATA[:-1]}*", "is not valid base64"), (text, "is not a PNG")):
            for body, param in (
                (chat(TEXT, linked(f"data:;base64,{bad}")), f"{WHERE}.image_url.url"),
                (anthropic(bad), f"{WHERE}.source.data"),
                (ollama(bad), "messages[0].images[0]"),
                (response(f"data:;base64,{bad}"), "input[0].content[1]"),
            ):
                with case(param=param, reason=reason):
                    message = await refusal(service.post(**body))
                    assert f"'{param}'" in message
                    assert reason in message
        image = chat_pb2.ImagePart()
        empty = chat_pb2.ChatMessage(role=chat_pb2.CHAT_ROLE_USER, content=[chat_pb2.ContentPart(image=image)])
        request = chat_service_pb2.CreateChatCompletionRequest(model=MODEL, messages=[empty])
        assert "neither 'data' nor 'url'" in await refusal(service.chat.CreateChatCompletion(request))
        large = file(halves(2000, 2000))
        parts = 2 * [linked(f"data:;base64,{base64.b64encode(large).decode()}")]
        assert "'n': the pictures of its 16 choices have" in await refusal(service.post(**chat(*parts), n=16))
        assert not submitted(service.workers[0])
        assert service.pictures._room.total == 0


async def test_pixels_are_held_until_the_prompt_is_computed(folder: Path) -> None:
    async with puppet_service(folder, SEEING) as service:
        held: list[int] = []

        def script(worker: PuppetWorker, request: Submit) -> None:
            held.append(service.pictures._room.total)
            begin(worker, request)

        service.script = script
        call = service.post(**chat(linked(), linked()), stream=True)
        assert await call.read()
        assert held == [2 * len(IMAGE.tobytes())]
        assert service.pictures._room.total == 0, "the answer goes on without them"
        call.cancel()


async def test_stored_responses_keep_their_pictures(folder: Path) -> None:
    store = await SqliteResponseStore.open(folder / "responses.db", 1)
    async with puppet_service(folder, SEEING, store) as service:
        service.script = end
        first = json.loads(await rest(service.post(**response())))
        follow = {"method": "CreateResponse", "input": "and?", "previous_response_id": first["id"]}
        await rest(service.post(**follow))
        assert [one.param for one in last(service).pictures] == ["input.content[1]"]
        assert shown(last(service)).startswith("<|im_start|>user\na*<|im_end|>\n<|im_start|>assistant\nParis<|im_end|>")
        listed = await service.responses.ListInputItems(response_service_pb2.ListInputItemsRequest(id=first["id"]))
        (item,) = listed.items
        rest_api = responses_service_pb2_grpc.ResponsesServiceStub(service.channel)
        page = await rest_api.ListInputItems(responses_service_pb2.ListInputItemsRequest(response_id=first["id"]))
        assert json.loads(page.data)["data"][0]["content"][1] == {
            "type": "input_image",
            "image_url": URL,
            "file_id": None,
            "detail": "low",
        }
        assert item.message.content[1].image == chat_pb2.ImagePart(url=URL, detail=chat_pb2.IMAGE_DETAIL_LOW)


async def test_a_stored_response_keeps_an_image_that_this_server_has_drawn_and_will_delete(folder: Path) -> None:
    store = await SqliteResponseStore.open(folder / "responses.db", 1)
    drawn = load_settings({"ALLM_HOME": str(folder)}).image
    async with puppet_service(folder, SEEING, store) as service:
        service.script = end
        files = ImageFiles(drawn.folder, drawn.folder_bytes, drawn.public_url)
        await files.start()
        url = await files.keep(PNG, "png", ANONYMOUS.subject)
        await files.close()
        first = json.loads(await rest(service.post(**response(url))))
        for path in drawn.folder.iterdir():
            path.unlink()
        follow = {"method": "CreateResponse", "input": "and?", "previous_response_id": first["id"]}
        await rest(service.post(**follow))
        assert last(service).pictures[0].pixels == IMAGE.tobytes()
        request = response_service_pb2.ListInputItemsRequest(id=first["id"])
        (item,) = (await service.responses.ListInputItems(request)).items
        assert item.message.content[1].image.url == URL
        assert "'input[0].content[1]' is no image that" in await refusal(service.post(**response(url)))


async def test_stored_pictures_count_in_the_quota(folder: Path) -> None:
    store = await SqliteResponseStore.open(folder / "responses.db", 1, most_bytes=20_000)
    noise = base64.b64encode(file(Image.effect_noise((200, 100), 100))).decode()
    async with puppet_service(folder, SEEING, store) as service:
        service.script = end
        for _ in range(3):
            await rest(service.post(**response()))
        await rest(service.post(**response(f"data:;base64,{noise}")))
        assert "Your stored responses have" in await refusal(service.post(**response()))


async def test_typed_responses_take_pictures_in_messages_and_results(folder: Path) -> None:
    store = await SqliteResponseStore.open(folder / "responses.db", 1)
    content = [chat_pb2.ContentPart(text="a"), chat_pb2.ContentPart(image=chat_pb2.ImagePart(data=PNG))]
    items = [
        response_pb2.Item(message=response_pb2.MessageItem(role=chat_pb2.CHAT_ROLE_USER, content=content)),
        response_pb2.Item(function_call=response_pb2.FunctionCallItem(call_id="c", name="f", arguments_json="{}")),
        response_pb2.Item(function_call_output=response_pb2.FunctionCallOutputItem(call_id="c", content=content)),
    ]
    async with puppet_service(folder, SEEING, store) as service:
        service.script = end
        request = response_service_pb2.CreateResponseRequest(model=MODEL, input=items)
        created = await service.responses.CreateResponse(request)
        assert len(last(service).pictures) == 2
        assert shown(last(service)).endswith("<|im_start|>user\n*<|im_end|>\n<|im_start|>assistant\n")
        request = response_service_pb2.ListInputItemsRequest(id=created.response.id)
        first, _, result = (await service.responses.ListInputItems(request)).items
        assert first.message.content[1].image.url == result.function_call_output.content[1].image.url == URL
        items[2].function_call_output.output = "b"
        request = response_service_pb2.CreateResponseRequest(model=MODEL, input=items)
        assert "mutually exclusive" in await refusal(service.responses.CreateResponse(request))
