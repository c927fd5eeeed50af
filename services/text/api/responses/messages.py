"""Conversion of responses, items and events to protobuf (allm.text.v1), and of items from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any, get_args

from allm.text.v1 import chat_pb2, response_pb2, response_service_pb2

from services.errors import InvalidRequest
from services.text.api.chat.servicer import logprob_messages, read_detail, timestamp, usage_message
from services.text.conversation import OutputFormat, Tool
from services.text.picture_urls import data_url
from services.text.responses.response import (
    Delta,
    Event,
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    ItemAdded,
    ItemDone,
    ItemReference,
    ItemStatus,
    MessageItem,
    MessageRole,
    Part,
    PartAdded,
    PartDone,
    Progress,
    ReasoningItem,
    Response,
    ResponseSettings,
    Status,
    given_id,
)

_STATUSES: dict[Status, response_pb2.ResponseStatus.ValueType] = {
    status: response_pb2.ResponseStatus.Value(f"RESPONSE_STATUS_{status.upper()}") for status in get_args(Status)
}
_ITEM_STATUSES: dict[ItemStatus, response_pb2.ItemStatus.ValueType] = {
    status: response_pb2.ItemStatus.Value(f"ITEM_STATUS_{status.upper()}") for status in get_args(ItemStatus)
}
_ROLES: dict[MessageRole, chat_pb2.ChatRole.ValueType] = {
    role: chat_pb2.ChatRole.Value(f"CHAT_ROLE_{role.upper()}") for role in get_args(MessageRole)
}
_READ_ROLES = {number: role for role, number in _ROLES.items()}
_READ_STATUSES = {number: status for status, number in _ITEM_STATUSES.items()}


def read_item(item: response_pb2.Item, param: str) -> Item | ItemReference:
    """Converts an item of a request. Raises InvalidRequest."""
    kind = item.WhichOneof("kind")
    status = _READ_STATUSES.get(item.status, "completed")
    if kind == "message":
        role = _READ_ROLES.get(item.message.role)
        if role is None:
            raise InvalidRequest(f"'{param}.message.role' is not set to a known role.", param=f"{param}.message.role")
        content = _read_parts(item.message.content, f"{param}.message.content")
        return MessageItem(id=given_id(item.id, "msg", param), role=role, content=content, status=status)
    if kind == "reasoning":
        thought = item.reasoning
        summary = tuple(thought.summary)
        return ReasoningItem(id=given_id(item.id, "rs", param), text=thought.text, summary=summary, status=status)
    if kind == "function_call":
        call = item.function_call
        return FunctionCallItem(
            id=given_id(item.id, "fc", param),
            call_id=_call_id(call.call_id, f"{param}.function_call"),
            name=call.name,
            arguments=call.arguments_json,
            namespace=call.namespace,
            status=status,
        )
    if kind == "function_call_output":
        result = item.function_call_output
        call_id = _call_id(result.call_id, f"{param}.function_call_output")
        parts = _read_parts(result.content, f"{param}.function_call_output.content")
        if parts and result.output:
            where = f"{param}.function_call_output.content"
            raise InvalidRequest(f"'{where}' and 'output' are mutually exclusive.", param=where)
        return FunctionOutputItem(
            id=given_id(item.id, "fco", param), call_id=call_id, output=result.output, parts=parts, status=status
        )
    if kind == "item_reference":
        return ItemReference(id=given_id(item.item_reference, "msg", param))
    raise InvalidRequest(f"'{param}' has no kind set.", param=param)


def item_message(item: Item) -> response_pb2.Item:
    """Converts an item."""
    message = response_pb2.Item(id=item.id, status=_ITEM_STATUSES[item.status])
    if isinstance(item, MessageItem):
        message.message.role = _ROLES[item.role]
        for part in item.content:
            message.message.content.append(_part(part))
            message.message.logprobs.extend(logprob_messages(part.logprobs))
    elif isinstance(item, ReasoningItem):
        message.reasoning.CopyFrom(response_pb2.ReasoningItem(text=item.text, summary=item.summary))
    elif isinstance(item, FunctionCallItem):
        call = response_pb2.FunctionCallItem(
            call_id=item.call_id, name=item.name, arguments_json=item.arguments, namespace=item.namespace
        )
        message.function_call.CopyFrom(call)
    else:
        parts = [_part(part) for part in item.parts]
        result = response_pb2.FunctionCallOutputItem(call_id=item.call_id, output=item.output, content=parts)
        message.function_call_output.CopyFrom(result)
    return message


def _read_parts(given: Iterable[chat_pb2.ContentPart], param: str) -> tuple[Part, ...]:
    return tuple(_read_part(part, f"{param}[{at}]") for at, part in enumerate(given))


def _read_part(given: chat_pb2.ContentPart, param: str) -> Part:
    kind = given.WhichOneof("part")
    if kind is None:
        raise InvalidRequest(f"'{param}' has no part set.", param=param)
    if kind == "image":
        image = given.image
        url = image.url or data_url(image.data)
        return Part(text="", image_url=url, detail=read_detail(image, f"{param}.image"))
    return Part(text=given.text or given.refusal, refusal=kind == "refusal")


def _part(part: Part) -> chat_pb2.ContentPart:
    if part.image_url:
        detail = chat_pb2.ImageDetail.Value(f"IMAGE_DETAIL_{part.detail.upper()}")
        return chat_pb2.ContentPart(image=chat_pb2.ImagePart(url=part.image_url, detail=detail))
    return chat_pb2.ContentPart(refusal=part.text) if part.refusal else chat_pb2.ContentPart(text=part.text)


def response_message(response: Response) -> response_pb2.Response:
    """Converts a response."""
    failure = response.failure
    return response_pb2.Response(
        id=response.id,
        model=response.model,
        create_time=timestamp(response.created),
        complete_time=None if response.completed is None else timestamp(response.completed),
        status=_STATUSES[response.status],
        output=[item_message(item) for item in response.output],
        usage=usage_message(response.usage) if response.usage else None,
        failure=response_pb2.ResponseFailure(code=failure.code, message=failure.message) if failure else None,
        incomplete_reason=response.incomplete or "",
        settings=_settings(response.settings),
    )


def event_message(number: int, event: Event) -> response_service_pb2.StreamResponseResponse:
    """Converts an event, with its sequence number."""
    field, content = _event(event)
    return response_service_pb2.StreamResponseResponse(sequence_number=number, **{field: content})


def _event(event: Event) -> tuple[str, Any]:
    """Returns the protobuf field for an event, and its message."""
    if isinstance(event, Progress):
        return event.step, response_message(event.response)
    if isinstance(event, ItemAdded | ItemDone):
        item = item_message(event.item)
        if isinstance(event, ItemAdded) and isinstance(event.item, MessageItem):
            item.message.ClearField("content")  # the next event adds the part
        field = "item_added" if isinstance(event, ItemAdded) else "item_done"
        return field, response_service_pb2.ItemEvent(output_index=event.index, item=item)
    if isinstance(event, PartAdded | PartDone):
        field = "part_added" if isinstance(event, PartAdded) else "part_done"
        text = _text(event.item)
        return field, response_service_pb2.PartEvent(output_index=event.index, item_id=event.item.id, text=text)
    field = f"{event.kind}_{'delta' if isinstance(event, Delta) else 'done'}"
    logprobs = logprob_messages(event.logprobs)
    return field, response_service_pb2.TextEvent(
        output_index=event.index, item_id=event.item, text=event.text, logprobs=logprobs
    )


def _settings(settings: ResponseSettings) -> response_pb2.ResponseSettings:
    choice = settings.tool_choice
    sampling: dict[str, Any] = dataclasses.asdict(settings.sampling)
    sampling["logit_bias"] = dict(settings.sampling.logit_bias)
    mode = chat_pb2.ToolChoice.Mode.Value(f"MODE_{choice.mode.upper()}")
    truncation = response_pb2.TRUNCATION_AUTO if settings.shorten else response_pb2.TRUNCATION_DISABLED
    message = response_pb2.ResponseSettings(
        instructions=settings.instructions or "",
        sampling=chat_pb2.SamplingParameters(**sampling),
        tools=[_tool(tool) for tool in settings.tools],
        tool_choice=chat_pb2.ToolChoice(mode=mode, names=sorted(choice.names)),
        parallel_tool_calls=settings.parallel_tool_calls,
        top_logprobs=settings.logprobs,
        reasoning_effort=settings.reasoning_effort,
        previous_response_id=settings.previous_response_id or "",
        store=bool(settings.store),
        background=settings.background,
        truncation=truncation,
        metadata=settings.metadata,
        prompt_cache_key=settings.prompt_cache_key or "",
        template_variables_json=json.dumps(settings.template_variables) if settings.template_variables else "",
    )
    if settings.output.kind != "text":
        message.output_format.CopyFrom(_output(settings.output))
    return message


def _output(output: OutputFormat) -> chat_pb2.OutputFormat:
    if output.kind == "json_object":
        return chat_pb2.OutputFormat(json_object=True)
    if output.kind == "json_schema":
        return chat_pb2.OutputFormat(json_schema=json.dumps(output.schema))
    if output.kind == "choice":
        return chat_pb2.OutputFormat(choice=chat_pb2.AnswerChoices(texts=output.choices))
    if output.kind == "regex":
        return chat_pb2.OutputFormat(regex=output.source)
    if output.kind == "lark":
        return chat_pb2.OutputFormat(lark_grammar=output.source)
    return chat_pb2.OutputFormat(gbnf_grammar=output.source) if output.kind == "gbnf" else chat_pb2.OutputFormat()


def _tool(tool: Tool) -> chat_pb2.Tool:
    parameters = "" if tool.parameters is None else json.dumps(tool.parameters)
    return chat_pb2.Tool(
        name=tool.name, description=tool.description, parameters_json=parameters, strict=bool(tool.strict)
    )


def _text(item: Item) -> str:
    if isinstance(item, MessageItem):
        return "".join(part.text for part in item.content)
    return item.text if isinstance(item, ReasoningItem) else ""


def _call_id(given: str, param: str) -> str:
    if not given:
        raise InvalidRequest(f"'{param}.call_id' is missing.", param=f"{param}.call_id")
    return given_id(given, "fc", param)
