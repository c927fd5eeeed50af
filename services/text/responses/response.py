"""A response, and how it was asked for: the one record that both wire formats print and the store keeps."""

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
    """What a caller calls the shape of the answer; it only comes back."""

    name: str = "response"
    description: str | None = None
    strict: bool | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How a response is made, besides its model and input. The last lines only come back to the caller."""

    instructions: str | None = None
    sampling: SamplingParams = SamplingParams()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    output: OutputFormat = OutputFormat()
    logprobs: int | None = None  # None: off; else how many of the likeliest tokens to tell beside each
    reasoning_effort: ReasoningEffort = ""
    previous_response_id: str | None = None
    store: bool | None = None  # None in a request only: as the operator says
    background: bool = False
    streamed: bool = False  # in the background: whether its events are kept, for whoever follows
    shorten: bool = False  # whether the oldest turns may be left out where the conversation does not fit
    prompt_cache_key: str | None = None  # what the caller calls the session, so that its prefix stays in the cache

    output_name: OutputName = OutputName()
    summary: str | None = None  # of thoughts
    max_tool_calls: int | None = None  # counts tools that run here, of which there are none
    metadata: dict[str, str] = {}
    safety_identifier: str | None = None
    user: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed; `code` is one of the ten."""

    code: str
    message: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response as it is at some time."""

    id: str
    model: str  # the model's own id
    created: float  # seconds since 1970
    asked: Asked
    status: Status = "in_progress"
    completed: float | None = None
    output: tuple[Item, ...] = ()
    usage: Usage | None = None
    failure: Failure | None = None
    incomplete: str | None = None  # why

    @property
    def running(self) -> bool:
        """Whether more is to come."""
        return self.status in RUNNING


class ResponseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a response."""

    model: str  # id or alias
    input: tuple[Item | ItemReference, ...]
    asked: Asked


def failure_of(error: AllmError) -> Failure:
    """What a response that ends with an error tells of it."""
    return Failure(code=error.code, message=error.message)
