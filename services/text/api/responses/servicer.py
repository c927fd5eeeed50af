"""The servicer of allm.text.v1.ResponseService."""

from __future__ import annotations

from allm.text.v1 import response_pb2, response_service_pb2, response_service_pb2_grpc

from services.errors import InvalidRequest, Unsupported
from services.rest.openai.body import called
from services.rpc.call import Call, typed
from services.telemetry import metrics
from services.text import limits
from services.text.api.chat.servicer import read_settings
from services.text.api.openai_sampling import check_metadata
from services.text.api.responses.messages import event_message, item_message, read_item, response_message
from services.text.conversation import Message
from services.text.responses.response import ResponseRequest, ResponseSettings
from services.text.responses.responses import Responses

AnyRequest = (
    response_service_pb2.CreateResponseRequest
    | response_service_pb2.StreamResponseRequest
    | response_service_pb2.CountInputTokensRequest
)

SECONDS = 30.0  # for calls that only access the store
DEFAULT_LIMIT = 20
# The names used here for parameters that have another name in the core and the worker.
PARAMETER_NAMES = {
    "messages": "input",
    "response_format": "settings.output_format.json_schema",
    "max_tokens": "settings.sampling.max_tokens",
    **{field.name: f"settings.{field.name}" for field in response_pb2.ResponseSettings.DESCRIPTOR.fields},
}


class ResponseServicer(response_service_pb2_grpc.ResponseServiceServicer):
    """The typed responses API."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    @typed(operation="chat")
    async def CreateResponse(  # noqa: N802
        self, request: response_service_pb2.CreateResponseRequest, call: Call
    ) -> response_service_pb2.CreateResponseResponse:
        """Returns the complete response, or a queued one if it runs in the background."""
        with called(PARAMETER_NAMES):
            response_request = read_request(request)
            call.model = await self._responses.model_id(response_request.model)
            if response_request.settings.background:
                response = await self._responses.start(response_request, call.client)
            else:
                async with self._responses.run(response_request, call.client) as run:
                    response = await run.whole()
                if response.usage:
                    call.facts["usage"] = response.usage.facts
        return response_service_pb2.CreateResponseResponse(response=response_message(response))

    @typed(operation="chat")
    async def StreamResponse(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: response_service_pb2.StreamResponseRequest, call: Call
    ) -> None:
        """Streams the response event by event."""
        with called(PARAMETER_NAMES):
            response_request = read_request(request)
            if response_request.settings.background:
                raise Unsupported("'background' cannot be streamed here: poll with GetResponse.", param="background")
            call.model = await self._responses.model_id(response_request.model)
            number = 0
            async with self._responses.run(response_request, call.client) as run:
                async for events in run.events():
                    for event in events:
                        await call.send(event_message(number, event))
                        number += 1
            if run.response.usage:
                call.facts["usage"] = run.response.usage.facts
            if run.failure:  # an event has reported it, so the call itself succeeds
                metrics.ERRORS.labels(call.rpc, run.failure.code, call.model).inc()
                call.facts["failed"] = run.failure.code

    @typed(SECONDS)
    async def GetResponse(  # noqa: N802
        self, request: response_service_pb2.GetResponseRequest, call: Call
    ) -> response_service_pb2.GetResponseResponse:
        """Returns a stored response."""
        with called({"response_id": "id"}):
            response = await self._responses.get(request.id, call.client)
        return response_service_pb2.GetResponseResponse(response=response_message(response))

    @typed(SECONDS)
    async def DeleteResponse(  # noqa: N802
        self, request: response_service_pb2.DeleteResponseRequest, call: Call
    ) -> response_service_pb2.DeleteResponseResponse:
        """Deletes a stored response."""
        with called({"response_id": "id"}):
            await self._responses.delete(request.id, call.client)
        return response_service_pb2.DeleteResponseResponse()

    @typed(SECONDS)
    async def CancelResponse(  # noqa: N802
        self, request: response_service_pb2.CancelResponseRequest, call: Call
    ) -> response_service_pb2.CancelResponseResponse:
        """Cancels a background response."""
        with called({"response_id": "id"}):
            response = await self._responses.cancel(request.id, call.client)
        return response_service_pb2.CancelResponseResponse(response=response_message(response))

    @typed(SECONDS)
    async def ListInputItems(  # noqa: N802
        self, request: response_service_pb2.ListInputItemsRequest, call: Call
    ) -> response_service_pb2.ListInputItemsResponse:
        """Lists the input items of a stored response."""
        with called({"response_id": "id"}):
            items, has_more = await self._responses.input_items(
                request.id,
                call.client,
                newest_first=request.newest_first,
                after=request.after,
                limit=request.limit if request.HasField("limit") else DEFAULT_LIMIT,
            )
        return response_service_pb2.ListInputItemsResponse(items=map(item_message, items), has_more=has_more)

    @typed()
    async def CountInputTokens(  # noqa: N802
        self, request: response_service_pb2.CountInputTokensRequest, call: Call
    ) -> response_service_pb2.CountInputTokensResponse:
        """Counts the tokens of an input."""
        with called(PARAMETER_NAMES):
            response_request = read_request(request)
            call.model = await self._responses.model_id(response_request.model)
            count = await self._responses.count(response_request, call.client)
        return response_service_pb2.CountInputTokensResponse(input_tokens=count)


def read_request(request: AnyRequest) -> ResponseRequest:
    """Checks a request and converts it to the core's type. Raises InvalidRequest or Unsupported."""
    if len(request.input) > limits.MAX_MESSAGES:
        message = f"'input' has {len(request.input)} items; at most {limits.MAX_MESSAGES} are allowed."
        raise InvalidRequest(message, param="input")
    given = request.settings
    check_metadata(given.metadata)
    # Its messages come from the items, which the core reads.
    chat = read_settings(request.model, (Message(role="user", content=""),), given)
    settings = ResponseSettings(
        instructions=given.instructions or None,
        sampling=chat.sampling,
        tools=chat.tools,
        tool_choice=chat.tool_choice,
        parallel_tool_calls=chat.parallel_tool_calls,
        output=chat.output,
        logprobs=chat.logprobs,
        reasoning_effort=chat.reasoning_effort,
        previous_response_id=given.previous_response_id or None,
        store=given.store if given.HasField("store") else None,
        background=given.background,
        shorten=given.truncation == response_pb2.TRUNCATION_AUTO,
        metadata=dict(given.metadata),
        prompt_cache_key=given.prompt_cache_key or None,
    )
    items = tuple(read_item(item, f"input[{at}]") for at, item in enumerate(request.input))
    return ResponseRequest(model=request.model, input=items, settings=settings)
