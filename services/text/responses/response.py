"""A response and its settings: the record that both wire formats encode and the store keeps."""

from __future__ import annotations

from typing import Literal

import msgspec

from services.errors import AllmError
from services.text.conversation import OutputFormat, ReasoningEffort, Tool, ToolChoice, Usage
from services.text.engine.sampling import SamplingParams
from services.text.responses.item import Item, ItemReference

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
RUNNING: tuple[Status, ...] = ("queued", "in_progress")


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
    store: bool | None = None  # None only in a request: the operator's setting decides
    background: bool = False
    streamed: bool = False  # background only: events are stored for later streaming
    shorten: bool = False  # drop the oldest turns if the conversation does not fit
    prompt_cache_key: str | None = None  # the caller's name for the session, so that its prefix stays in the cache

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
    """Converts an error to the failure of a response."""
    return Failure(code=error.code, message=error.message)
