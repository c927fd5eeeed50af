"""The facade for /v1/responses and the endpoints below it."""

from __future__ import annotations

from collections.abc import Mapping

from allm.openai.v1 import responses_service_pb2, responses_service_pb2_grpc
from google.api import httpbody_pb2

from services.errors import InvalidRequest
from services.rest.openai import sse
from services.rest.openai.body import called, json_body
from services.rest.openai.sse import facade
from services.rpc.call import Call
from services.telemetry import metrics
from services.text.api.other_parameters import leave_out_tools, unknown_parameters
from services.text.api.responses.openai import EventWriter, is_newest_first, items_object, response_object
from services.text.api.responses.openai_request import ResponseBody, check_include, platform_tools, read_request
from services.text.responses.response import ResponseRequest
from services.text.responses.responses import Responses
from services.text.responses.run import Run

SECONDS = 30.0  # for calls that only access the store
DEFAULT_LIMIT = 20


class ResponsesFacade(responses_service_pb2_grpc.ResponsesServiceServicer):
    """OpenAI's Responses endpoints."""

    def __init__(self, responses: Responses, *, platform_tools_refused: bool = False) -> None:
        self._responses = responses
        self._platform_tools_refused = platform_tools_refused

    @facade(operation="chat")
    async def CreateResponse(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Sends one JSON body, or server-sent events if the request sets `stream`."""
        body, response_request, names = self._read(request, call)
        obfuscated = bool(body.stream_options and body.stream_options.include_obfuscation)
        with called(names):
            call.model = await self._responses.model_id(response_request.model)
            if response_request.settings.background:
                await self._start(response_request, call, stream=bool(body.stream), obfuscated=obfuscated)
                return
            async with self._responses.run(response_request, call.client) as run:
                call.ignore(run.ignored)
                if body.stream:
                    await _stream(run, call, EventWriter(obfuscated=obfuscated))
                else:
                    await call.send(json_body(response_object(await run.whole())))
            if usage := run.response.usage:
                call.facts["usage"] = usage.facts

    @facade()
    async def CountInputTokens(  # noqa: N802
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Counts the tokens of an input."""
        _, response_request, names = self._read(request, call)
        with called(names):
            call.model = await self._responses.model_id(response_request.model)
            count = await self._responses.count(response_request, call.client)
        return json_body({"object": "response.input_tokens", "input_tokens": count})

    @facade()
    async def GetResponse(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: responses_service_pb2.GetResponseRequest, call: Call
    ) -> None:
        """Returns a stored response, or streams the events of a background response."""
        check_include([*request.include, *request.include_brackets])
        if request.stream:
            after = request.starting_after if request.HasField("starting_after") else -1
            await self._follow(request.response_id, after, call, obfuscated=request.include_obfuscation)
            return
        if request.HasField("starting_after"):
            raise InvalidRequest("'starting_after' is only allowed when 'stream' is true.", param="starting_after")
        response = await self._responses.get(request.response_id, call.client)
        await call.send(json_body(response_object(response)))

    @facade(SECONDS)
    async def DeleteResponse(  # noqa: N802
        self, request: responses_service_pb2.DeleteResponseRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Deletes a stored response."""
        await self._responses.delete(request.response_id, call.client)
        return json_body({"id": request.response_id, "object": "response", "deleted": True})

    @facade(SECONDS)
    async def CancelResponse(  # noqa: N802
        self, request: responses_service_pb2.CancelResponseRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Cancels a background response."""
        return json_body(response_object(await self._responses.cancel(request.response_id, call.client)))

    @facade(SECONDS)
    async def ListInputItems(  # noqa: N802
        self, request: responses_service_pb2.ListInputItemsRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Lists the input items of a stored response."""
        check_include([*request.include, *request.include_brackets])
        newest_first = is_newest_first(request.order)
        items, has_more = await self._responses.input_items(
            request.response_id,
            call.client,
            newest_first=newest_first,
            after=request.after,
            limit=request.limit if request.HasField("limit") else DEFAULT_LIMIT,
        )
        return json_body(items_object(items, has_more=has_more))

    def _read(
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> tuple[ResponseBody, ResponseRequest, Mapping[str, str]]:
        """Reads a request, and tells the caller what has no effect."""
        body, response_request, names = read_request(request)
        call.ignore_unknown(unknown_parameters(request, ResponseBody))
        leave_out_tools(call, platform_tools(body.tools or ()), refused=self._platform_tools_refused)
        return body, response_request, names

    async def _start(self, response_request: ResponseRequest, call: Call, *, stream: bool, obfuscated: bool) -> None:
        response = await self._responses.start(response_request, call.client)
        if stream:
            await self._follow(response.id, -1, call, obfuscated=obfuscated)
        else:
            await call.send(json_body(response_object(response)))

    async def _follow(self, response_id: str, after: int, call: Call, *, obfuscated: bool) -> None:
        writer = EventWriter(obfuscated=obfuscated)
        async for events in self._responses.follow(response_id, call.client, after):
            await call.send(sse.body(writer.event(event, number) for number, event in events))
        if not call.answering:  # no event follows that number
            await call.send(sse.body(()))


async def _stream(run: Run, call: Call, writer: EventWriter) -> None:
    """Sends events that are ready together in one HttpBody. Until the first token, or the first silence, the HTTP
    status reports errors.
    """
    async for events in run.events():
        await call.send(sse.body(map(writer.event, events) if events else [writer.keepalive()]))
    if run.failure:  # an event has reported it, so the call itself succeeds
        metrics.ERRORS.labels(call.rpc, run.failure.code, call.model).inc()
        call.facts["failed"] = run.failure.code
