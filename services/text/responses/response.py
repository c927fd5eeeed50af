"""A response, its settings, its items and its events: the records that both wire formats encode and the store keeps.

A new field needs a default, and existing fields of items must never change. The sequence number of an event is its
position in the stream.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, Literal

import msgspec

from services.auth.caller import current_caller
from services.errors import AllmError, InvalidRequest
from services.text.conversation import Detail, OutputFormat, ReasoningEffort, Tool, ToolChoice, Usage
from services.text.engine.messages import TokenLogprob
from services.text.engine.sampling import SamplingParams

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
RUNNING: tuple[Status, ...] = ("queued", "in_progress")
MAX_ID = 256  # characters of an id that a caller supplies
MAX_FLAT = 64  # characters of a tool's name
FLAT_DIGEST = 8  # hexadecimal digits that tell cut names apart

ItemStatus = Literal["in_progress", "completed", "incomplete"]
MessageRole = Literal["system", "developer", "user", "assistant"]


class OutputName(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's name and description of the output format; they are only returned."""

    name: str = "response"
    description: str | None = None
    strict: bool | None = None


class ResponseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a response, except model and input. The last group of fields is only returned to the caller."""

    instructions: str | None = None
    sampling: SamplingParams = SamplingParams()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    output: OutputFormat = OutputFormat()
    logprobs: int | None = None  # None: off; otherwise the number of top alternatives to return per token
    reasoning_effort: ReasoningEffort = ""
    previous_response_id: str | None = None
    conversation: str | None = None  # id of the conversation that it continues and extends
    store: bool | None = None  # None only in a request: the operator's setting decides
    background: bool = False
    streamed: bool = False  # background only: events are stored for later streaming
    shorten: bool = False  # drop the oldest turns if the conversation does not fit
    prompt_cache_key: str | None = None  # the caller's name for the session, so that its prefix stays in the cache
    template_variables: dict[str, Any] = {}  # of the chat template

    output_name: OutputName = OutputName()
    summary: str | None = None  # of reasoning
    max_tool_calls: int | None = None  # limits server-side tools, of which this server has none
    metadata: dict[str, str] = {}
    safety_identifier: str | None = None
    user: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a response failed; `code` is one of the ten error codes."""

    code: str
    message: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a response."""

    id: str
    model: str  # the model's id, not an alias
    created: float  # seconds since 1970
    settings: ResponseSettings = msgspec.field(name="asked")  # its name in stored responses
    status: Status = "in_progress"
    completed: float | None = None
    output: tuple[Item, ...] = ()
    usage: Usage | None = None
    failure: Failure | None = None
    incomplete: str | None = None  # the reason

    @property
    def running(self) -> bool:
        """True until the response has ended."""
        return self.status in RUNNING


class ResponseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a response."""

    model: str  # id or alias
    input: tuple[Item | ItemReference, ...]
    settings: ResponseSettings


def failure_of(error: AllmError) -> Failure:
    """Converts an error to the failure of a response, as the caller may see it."""
    return Failure(code=error.code, message=current_caller().shown(error.message))


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message's content, or of a tool's result: a text, or a picture."""

    text: str  # empty: it is a picture
    refusal: bool = False  # True for a refusal of the assistant
    logprobs: tuple[TokenLogprob, ...] = ()
    image_url: str = ""  # the picture: a data URL, or an address
    detail: Detail = "auto"  # of the picture


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """A message."""

    id: str
    role: MessageRole
    content: tuple[Part, ...]
    status: ItemStatus = "completed"


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """The reasoning of the model."""

    id: str
    text: str
    summary: tuple[str, ...] = ()
    status: ItemStatus = "completed"


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """A tool call by the model."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"
    namespace: str = ""  # of the tool; `name` is its name there


class FunctionOutputItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call_output"):
    """The result of a tool call."""

    id: str
    call_id: str
    output: str  # empty if there are `parts`
    status: ItemStatus = "completed"
    parts: tuple[Part, ...] = ()  # of a result with pictures


Item = MessageItem | ReasoningItem | FunctionCallItem | FunctionOutputItem


class ItemReference(msgspec.Struct, frozen=True, kw_only=True):
    """A reference, in a request, to an item of a stored response."""

    id: str


def flat_name(namespace: str, name: str) -> str:
    """Returns the name by which the model knows a member of a namespace, at most 64 characters; `name` without one."""
    if not namespace:
        return name
    flat = f"{namespace}{'' if namespace.endswith('__') else '__'}{name}"
    if len(flat) <= MAX_FLAT:
        return flat
    digest = hashlib.sha256(flat.encode()).hexdigest()[:FLAT_DIGEST]
    return f"{flat[: MAX_FLAT - FLAT_DIGEST - 1]}_{digest}"


def new_id(kind: Literal["resp", "conv", "msg", "rs", "fc", "fco"]) -> str:
    """Returns a new unguessable id for a response, conversation, message, reasoning, call or call output."""
    return f"{kind}_{secrets.token_hex(24)}"


def given_id(given: str | None, kind: Literal["msg", "rs", "fc", "fco"], param: str) -> str:
    """Returns the caller's id, or a new one if the caller gave none. Raises InvalidRequest if the id is too long."""
    if given and len(given) > MAX_ID:
        raise InvalidRequest(
            f"'{param}' has an id of {len(given)} characters; at most {MAX_ID} are allowed.", param=param
        )
    return given or new_id(kind)


class Progress(msgspec.Struct, frozen=True, tag=True):
    """The response has reached `step`; each of the last three steps ends the stream."""

    step: Literal["created", "queued", "in_progress", "completed", "incomplete", "failed"]
    response: Response


class ItemAdded(msgspec.Struct, frozen=True, tag=True):
    """An output item begins; it is still empty."""

    index: int  # in the output
    item: Item


class ItemDone(msgspec.Struct, frozen=True, tag=True):
    """An output item is complete, or was cut off."""

    index: int
    item: Item


class PartAdded(msgspec.Struct, frozen=True, tag=True):
    """The content of a message or of reasoning begins. Each has exactly one part here."""

    index: int
    item: Item


class PartDone(msgspec.Struct, frozen=True, tag=True):
    """The content of a message or of reasoning is complete; `item` holds it."""

    index: int
    item: Item


class Delta(msgspec.Struct, frozen=True, tag=True):
    """More text of an item: of a message, of reasoning, or of a call's arguments."""

    index: int
    kind: Literal["text", "reasoning", "arguments"]
    item: str  # its id
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class DeltaDone(msgspec.Struct, frozen=True, tag=True):
    """The concatenated deltas of an item."""

    index: int
    kind: Literal["text", "reasoning", "arguments"]
    item: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


Event = Progress | ItemAdded | ItemDone | PartAdded | PartDone | Delta | DeltaDone
