"""The model under test, reached by requests: conversations through the typed API, raw prompts through OpenAI's."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from allm.models.v1 import model_pb2
from allm.openai.v1 import text_service_pb2_grpc
from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc
from google.api import httpbody_pb2

from services.cli.models.catalog import CatalogClient
from services.cli.models.connection import CallRefused, by_model, readable_errors
from services.cli.problem import Problem

ANSWER_SECONDS = 600.0
NO_THOUGHTS, LITTLE = "none", "low"  # reasoning efforts
TIE = 0.5  # difference in log-probability below which rounding may swap two tokens
TOP = 5  # number of likeliest tokens requested, the most that OpenAI's completions return

USER, SYSTEM, ASSISTANT, TOOL = (
    chat_pb2.CHAT_ROLE_USER,
    chat_pb2.CHAT_ROLE_SYSTEM,
    chat_pb2.CHAT_ROLE_ASSISTANT,
    chat_pb2.CHAT_ROLE_TOOL,
)


class Stream(Protocol):
    """A gRPC call that streams an answer."""

    def __iter__(self) -> Iterator[chat_service_pb2.StreamChatCompletionResponse]: ...

    def cancel(self) -> object:
        """Cancels the call."""

    def code(self) -> grpc.StatusCode:
        """Waits for the end and returns the status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request with greedy sampling."""

    messages: Sequence[chat_pb2.ChatMessage]
    max_tokens: int | None
    schema: Mapping[str, Any] | None = None
    tools: Sequence[chat_pb2.Tool] = ()
    required: bool = False  # whether a tool must be called
    past_end: bool = False  # generate past the end of the turn
    thinking: bool = False  # the model's default reasoning; else the least possible

    def fields(self, model: str, effort: str) -> dict[str, Any]:
        """Returns the fields, equal for both kinds of requests; `effort`: the model's least reasoning effort."""
        sampling = chat_pb2.SamplingParameters(temperature=0, max_tokens=self.max_tokens, ignore_eos=self.past_end)
        fields: dict[str, Any] = {"model": model, "messages": self.messages, "sampling": sampling, "top_logprobs": TOP}
        fields["reasoning_effort"] = "" if self.thinking else effort
        if self.schema is not None:
            fields["output_format"] = chat_pb2.OutputFormat(json_schema=json.dumps(self.schema))
        if self.tools:
            fields["parallel_tool_calls"] = False  # otherwise a small model may call without end
            mode = chat_pb2.ToolChoice.MODE_REQUIRED if self.required else chat_pb2.ToolChoice.MODE_AUTO
            fields |= {"tools": self.tools, "tool_choice": chat_pb2.ToolChoice(mode=mode)}
        return fields


@dataclass(frozen=True, slots=True)
class Scored:
    """A token with its log-probability, and the likeliest tokens at its position."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()

    @classmethod
    def of(cls, token: chat_pb2.TokenLogprob) -> Scored:
        """Converts a token of the API."""
        return cls(token.token, token.logprob, tuple((each.token, each.logprob) for each in token.top))

    @property
    def tied(self) -> bool:
        """True if the two likeliest tokens were about equally likely."""
        return len(self.top) > 1 and self.top[0][1] - self.top[1][1] < TIE


@dataclass(slots=True, kw_only=True)
class SubjectAnswer:
    """A model's answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # names and arguments
    finish: chat_pb2.FinishReason.ValueType = chat_pb2.FINISH_REASON_UNSPECIFIED
    tokens: list[Scored] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def bits_per_byte(self) -> float:
        """Returns the answer's surprisal per byte: 0 is certainty, 8 is noise; NaN without log-probabilities."""
        size = sum(len(token.token) for token in self.tokens)
        return -sum(token.logprob for token in self.tokens) / math.log(2) / size if size else math.nan


@dataclass(slots=True, kw_only=True)
class Subject:
    """A model, and methods to send it requests. They raise a Problem (services.cli.models.connection)."""

    model: model_pb2.Model
    catalog: CatalogClient
    chat: chat_service_pb2_grpc.ChatServiceStub
    text: text_service_pb2_grpc.TextServiceStub
    runtime: str = ""  # runtime to load it with; empty: the registry's choice
    random: bool = False  # whether its weights are random, so its answers are meaningless
    prompt_tokens: int = 1000  # approximate length of a long prompt
    deadline: float = ANSWER_SECONDS
    _effort: str = field(default="", init=False)

    def ask(self, request: Request) -> SubjectAnswer:
        """Returns the complete answer to one request."""
        return self.ask_together([request])[0]

    def ask_together(self, requests: Sequence[Request]) -> list[SubjectAnswer]:
        """Returns the answers to concurrent requests."""
        kind, effort = chat_service_pb2.CreateChatCompletionRequest, self._least_effort()
        options = self._options()
        with readable_errors():
            calls = [
                self.chat.CreateChatCompletion.future(kind(**each.fields(self.model.id, effort)), **options)
                for each in requests
            ]
            try:
                return [_whole(call.result()) for call in calls]
            finally:
                for call in calls:
                    call.cancel()

    def stream(self, request: Request) -> Stream:
        """Sends one request as a stream; the caller reads or cancels it, inside `readable_errors`."""
        fields = request.fields(self.model.id, self._least_effort())
        return self.chat.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest(**fields), **self._options())

    def _options(self) -> dict[str, Any]:
        return {"timeout": self.deadline, "metadata": by_model(self.model.id)}

    def _least_effort(self) -> str:
        """Returns `none`, or the lowest effort of a model that always reasons."""
        if not self._effort:
            asked = Request(messages=[message("Hello!")], max_tokens=1)
            request = chat_service_pb2.CreateChatCompletionRequest(**asked.fields(self.model.id, NO_THOUGHTS))
            self._effort = NO_THOUGHTS
            try:
                with readable_errors():
                    self.chat.CreateChatCompletion(request, **self._options())
            except CallRefused as refused:
                if LITTLE not in str(refused):
                    raise
                self._effort = LITTLE
        return self._effort

    def count(self, request: Request) -> int:
        """Returns the number of prompt tokens of a request."""
        return self.ask(request).prompt_tokens

    def complete(self, text: str) -> tuple[int, dict[bytes, float]]:
        """Returns a raw prompt's token count, and the likeliest next tokens with their log-probabilities."""
        body = {"model": self.model.id, "prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": TOP}
        request = httpbody_pb2.HttpBody(content_type="application/json", data=json.dumps(body).encode())
        with readable_errors():
            answered = b"".join(part.data for part in self.text.CreateCompletion(request, **self._options()))
        try:
            reply = json.loads(answered)
            likeliest = (reply["choices"][0].get("logprobs") or {}).get("top_logprobs") or [{}]
            return reply["usage"]["prompt_tokens"], {
                text.encode(): float("nan") if value is None else value for text, value in likeliest[0].items()
            }
        except (ValueError, LookupError) as error:
            raise Problem(f"{self.model.id} gave no completion: {answered[:200].decode(errors='replace')}") from error


def message(text: str, role: chat_pb2.ChatRole.ValueType = USER) -> chat_pb2.ChatMessage:
    """Builds a message of plain text."""
    return chat_pb2.ChatMessage(role=role, content=[chat_pb2.ContentPart(text=text)])


def _whole(reply: chat_service_pb2.CreateChatCompletionResponse) -> SubjectAnswer:
    choice = reply.choices[0]
    return SubjectAnswer(
        text="".join(part.text or part.refusal for part in choice.message.content),
        reasoning=choice.message.reasoning,
        calls=[(call.name, call.arguments_json) for call in choice.message.tool_calls],
        finish=choice.finish_reason,
        tokens=[Scored.of(token) for token in choice.logprobs],
        prompt_tokens=reply.usage.prompt_tokens,
        completion_tokens=reply.usage.completion_tokens,
    )
