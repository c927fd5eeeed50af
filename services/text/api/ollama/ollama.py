"""Ollama's answers: whole, or as the lines of a stream, built from the core's results.

Reference: https://docs.ollama.com/api. A stream has a line for each part of the text and of the thoughts, one for each
complete call, and a last one with counts and times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from services.rest.ollama import timestamp
from services.text.api.chat.openai import token_objects
from services.text.api.messages.anthropic import arguments_object
from services.text.conversation import AnswerEvent, CallArguments, CallStarted, ReasoningDelta, TextDelta, ToolCall
from services.text.running_answer import AnswerContent, Completion

Part = dict[str, Any]  # of an answer: its text, thoughts and calls, under Ollama's names for a message


class Stopwatch:
    """The times of a request, from its start on the monotonic clock."""

    def __init__(self, started: float) -> None:
        self._started = self._loaded = self._begun = started

    def loaded(self) -> None:
        """Marks the moment when the model is in memory and has the request."""
        self._loaded = self._begun = time.monotonic()

    def begun(self) -> None:
        """Marks the moment of the first token."""
        self._begun = time.monotonic()

    def total(self) -> dict[str, int]:
        """Returns the times until now and until the model was loaded, in nanoseconds."""
        return {
            "total_duration": _nanoseconds(time.monotonic() - self._started),
            "load_duration": _nanoseconds(self._loaded - self._started),
        }

    def figures(self, completion: Completion) -> dict[str, int]:
        """Returns counts and times of a complete answer, in tokens and nanoseconds. Durations are 1 at least."""
        return {
            **self.total(),
            "prompt_eval_count": completion.usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(self._begun - self._loaded),
            "eval_count": completion.usage.completion_tokens,
            "eval_duration": _nanoseconds(time.monotonic() - self._begun),
        }


class AnswerWriter:
    """Builds one answer. `model`: the name that the caller has used; `chat`: of /api/chat, not of /api/generate."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._model = model
        self._chat = chat
        self._call: ToolCall | None = None  # one whose arguments are not complete yet
        self._calls = 0  # complete ones

    def lines(self, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        """Yields the lines of a stream for an event of the core; the last line is `done`."""
        if isinstance(event, CallArguments):
            if self._call:
                arguments = self._call.arguments + event.text
                self._call = ToolCall(id=self._call.id, name=self._call.name, arguments=arguments)
            return
        if self._call:
            yield self._line({"content": "", "tool_calls": [_call(self._call, self._calls)]})
            self._call, self._calls = None, self._calls + 1
        if isinstance(event, CallStarted):
            self._call = ToolCall(id=event.id, name=event.name, arguments="")
        elif isinstance(event, ReasoningDelta):
            yield self._line({"content": "", "thinking": event.text})
        elif isinstance(event, TextDelta):
            more = {"logprobs": token_objects(event.logprobs)} if event.logprobs else {}
            yield self._line({"content": event.text}) | more

    def done(self, reason: str, figures: dict[str, int] | None = None, part: Part | None = None) -> dict[str, Any]:
        """Builds the last line, or a whole answer, of which `part` has the text. `reason`: one of Ollama's words."""
        return {**self._line(part or {"content": ""}), "done": True, "done_reason": reason, **(figures or {})}

    def whole(self, content: AnswerContent, figures: dict[str, int]) -> dict[str, Any]:
        """Builds a whole answer."""
        part: Part = {"content": content.text}
        if content.reasoning:
            part["thinking"] = content.reasoning
        if content.calls:
            part["tool_calls"] = [_call(call, index) for index, call in enumerate(content.calls)]
        more = {"logprobs": token_objects(content.logprobs)} if content.logprobs else {}
        return self.done(reason_of(content), figures, part) | more

    def _line(self, part: Part) -> dict[str, Any]:
        head = {"model": self._model, "created_at": timestamp()}
        if self._chat:
            return {**head, "message": {"role": "assistant", **part}, "done": False}
        shown = {"response": part["content"], **{name: value for name, value in part.items() if name != "content"}}
        return {**head, **shown, "done": False}


def reason_of(content: AnswerContent) -> str:
    """Returns why a complete answer ended: Ollama counts calls as a usual end."""
    return "length" if content.finish == "length" else "stop"


def _call(call: ToolCall, index: int) -> dict[str, Any]:
    function = {"index": index, "name": call.name, "arguments": arguments_object(call.arguments)}
    return {"id": call.id, "function": function}


def _nanoseconds(seconds: float) -> int:
    return max(1, round(seconds * 1e9))
