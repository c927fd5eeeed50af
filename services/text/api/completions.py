"""POST /v1/completions, OpenAI's legacy Completions: continues a text or tokens, without conversation, template or
markup.

Reference: https://platform.openai.com/docs/api-reference/completions. A parameter of OpenAI's API that allm does not
support is rejected by name. The extensions are those of Chat Completions.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from google.api import httpbody_pb2

from services.auth.caller import current_caller
from services.errors import ContextLengthExceeded, InvalidRequest, Unsupported
from services.models.store import StoredModel
from services.rest.openai import body, sse
from services.rest.openai.body import json_body, send_body
from services.rpc.call import Call
from services.text import limits
from services.text.api.chat.openai import usage_object
from services.text.api.chat.openai_request import StreamOptions
from services.text.api.openai_constraints import ConstraintBody, constrained
from services.text.api.openai_sampling import sampling_of
from services.text.api.other_parameters import unknown_parameters
from services.text.chat import Chat
from services.text.conversation import FREE_TEXT, Finished, OutputFormat, TextDelta, Usage
from services.text.engine.messages import TokenLogprob
from services.text.engine.sampling import SamplingParams, without_effect
from services.text.manager import TextModels
from services.text.running_answer import AnswerContent, Choice, Completion

DEFAULT_TOKENS = 16  # OpenAI's default of `max_tokens`
MAX_PROMPTS = 128
MAX_ANSWERS = 128  # prompts times choices
MAX_LOGPROBS = 5
MAX_SCORED_TOKENS = 128 * 1024  # of all prompts of a request with logprobs of its prompts, which take a kilobyte each
PART_TOKENS = 512  # whose logprobs are converted without a pause
T = TypeVar("T")

Prompt = str | list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """Prompts to continue, with `choices` continuations for each, in the order of the prompts."""

    model: str  # id or alias
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    choices: int = 1
    logprobs: int | None = None  # None: off; otherwise the number of top alternatives to return per token
    suffix: str = ""  # the text after the gap that the answer fills; empty: the answer continues the prompt
    scored: bool = False  # whether `logprobs` is also for the tokens of the prompts
    room_required: bool = True  # whether max_tokens must fit into the context; otherwise the answer ends with it
    prompt_only: bool = False  # whether nothing follows the prompts
    output: OutputFormat = FREE_TEXT


class Completions:
    """Continues texts."""

    def __init__(self, models: TextModels, chat: Chat) -> None:
        """`chat` makes the grammars of constrained texts."""
        self._models = models
        self._chat = chat

    @asynccontextmanager
    async def complete(self, stored: StoredModel, request: CompletionRequest, client: str) -> AsyncIterator[Completion]:
        """Runs a completion while the block runs; leaving it early stops the model.

        Raises:
            ModelInvalid, ModelNotReady, Unsupported: the model cannot be served, or cannot fill in.
            ContextLengthExceeded: a prompt is too long; `param` is `prompt`.
            InvalidRequest: the prompts are too long together for logprobs of all their tokens.
            Overloaded: the queue is full, or the caller's key has exhausted its tokens per minute.
        """
        caller = current_caller()
        await caller.admit()
        grammar = await self._chat.output_grammar(request.output)
        async with self._models.loaded(stored) as model, AsyncExitStack() as stack:
            if request.suffix and model.ready.infill is None:
                message = f"The model `{stored.id}` has no fill-in-the-middle tokens, which 'suffix' needs."
                raise Unsupported(message, param="suffix")
            choices = []
            for prompt in request.prompts:
                for number in range(request.choices):
                    answer = await stack.enter_async_context(
                        model.generate(
                            client,
                            prompt,
                            request.sampling.for_choice(number),
                            grammar,
                            logprobs=request.logprobs,
                            suffix=request.suffix,
                            scored=request.scored,
                            room_required=request.room_required,
                        )
                    )
                    choices.append(Choice(answer, parser=None, prompt_only=request.prompt_only))
            ignored = without_effect(request.sampling) if grammar else []
            prompts = len(request.prompts)
            completion = Completion(stored.id, choices, prefix="cmpl", prompts=prompts, ignored=ignored)
            stack.callback(lambda: caller.spend(completion.computed))
            stack.push_async_callback(completion.close)
            try:
                if request.scored:
                    _check_scored(sum([await choice.accepted() for choice in choices]))
                yield completion
            except ContextLengthExceeded as error:
                raise ContextLengthExceeded(error.message, param="prompt") from error


def _check_scored(tokens: int) -> None:
    if tokens > MAX_SCORED_TOKENS:
        message = (
            f"'echo' with 'logprobs' may have {MAX_SCORED_TOKENS} tokens of prompts, counted for each choice, "
            f"not {tokens}; send them as several requests."
        )
        raise InvalidRequest(message, param="prompt")


class LegacyRequest(ConstraintBody, kw_only=True):
    """The body of POST /v1/completions."""

    model: str
    prompt: str | list[str | int | list[int]] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    logit_bias: dict[int, float] | None = None
    n: int | None = None
    best_of: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None


def read_request(raw: httpbody_pb2.HttpBody) -> tuple[LegacyRequest, CompletionRequest]:
    """Reads and checks a request. Returns the decoded body and the core's request.

    Raises:
        InvalidRequest: a type or value is wrong; the error names the parameter.
        Unsupported: a parameter is not supported; the error names it.
    """
    request = body.decode(raw, LegacyRequest)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    if not request.model:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    choices = 1 if request.n is None else request.n
    prompts = _prompts(request.prompt)
    if not 1 <= choices * len(prompts) <= MAX_ANSWERS:
        message = f"'n' times the prompts must be 1 to {MAX_ANSWERS}, not {choices * len(prompts)}."
        raise InvalidRequest(message, param="n")
    if request.best_of not in (None, choices):
        raise Unsupported("'best_of' other than 'n' is not supported.", param="best_of")
    _check_logprobs(request)
    most = DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
    prompt_only = bool(request.echo) and most == 0
    sampling = sampling_of(request, 1 if prompt_only else most, request.logit_bias)
    limits.check_sampling(sampling)
    output, names = constrained(request, FREE_TEXT)
    with body.called(names):
        limits.check_output(output)
    return request, CompletionRequest(
        model=request.model,
        prompts=prompts,
        sampling=sampling,
        choices=choices,
        logprobs=request.logprobs,
        suffix=request.suffix or "",
        scored=bool(request.echo) and request.logprobs is not None,
        prompt_only=prompt_only,
        output=output,
    )


def _prompts(prompt: str | list[str | int | list[int]] | None) -> tuple[Prompt, ...]:
    if prompt is None:
        raise InvalidRequest("Missing required parameter: 'prompt'.", param="prompt")
    if isinstance(prompt, str):
        return (prompt,)
    if prompt and all(isinstance(token, int) for token in prompt):
        return ([token for token in prompt if isinstance(token, int)],)
    if not prompt or any(isinstance(part, int) or not part for part in prompt):
        message = "'prompt' must be a string, an array of strings, of tokens or of token arrays, and none may be empty."
        raise InvalidRequest(message, param="prompt")
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(f"'prompt' has {len(prompt)} entries; at most {MAX_PROMPTS} are allowed.", param="prompt")
    return tuple(part for part in prompt if not isinstance(part, int))


def _check_logprobs(request: LegacyRequest) -> None:
    if request.logprobs is not None and not 0 <= request.logprobs <= MAX_LOGPROBS:
        message = f"'logprobs' must be 0 to {MAX_LOGPROBS}, not {request.logprobs}."
        raise InvalidRequest(message, param="logprobs")
    if request.echo and request.logprobs is not None and request.suffix:
        raise Unsupported("'echo' with 'logprobs' is not supported beside 'suffix'.", param="echo")


class LegacyWriter:
    """Builds the `text_completion` objects of one request: one complete object, or the chunks of a stream."""

    def __init__(
        self, head: dict[str, Any], *, logprobs: bool, include_usage: bool = False, obfuscated: bool = False
    ) -> None:
        self._head = {
            "id": head["id"],
            "object": "text_completion",
            "created": head["created"],
            "model": head["model"],
            "system_fingerprint": None,
        }
        self._tail: dict[str, Any] = {"usage": None} if include_usage else {}
        self._logprobs = logprobs
        self._obfuscated = obfuscated
        self._offsets: dict[int, _Offsets] = {}  # by choice

    async def whole(self, answers: Sequence[AnswerContent], echoes: Sequence[str], usage: Usage) -> dict[str, Any]:
        """Builds one object with all choices; `echoes` precede their texts. Other requests run in between."""
        choices = []
        for index, (answer, echo) in enumerate(zip(answers, echoes, strict=True)):
            parts = [part async for part in _shared(self.scored(index, answer, echo))]
            parts += [self._logprobs_object(index, answer.logprobs)] if answer.logprobs else []
            choice = self._choice(index, echo + answer.text, (), answer.finish)
            if self._logprobs and parts:
                choice["logprobs"] = {name: [each for part in parts for each in part[name]] for name in parts[0]}
            choices.append(choice)
        return {**self._head, "choices": choices, "usage": usage_object(usage)}

    def scored(self, index: int, answer: AnswerContent, echo: str) -> Iterator[dict[str, list[Any]]]:
        """Yields the logprobs of a choice's prompt in parts. Its first token follows nothing, so it has none."""
        tokens = answer.prompt_logprobs
        if not tokens:
            return
        # A tokenizer may put a token or a space before the text.
        before = len(b"".join(token.piece for token in tokens).decode(errors="replace")) - len(echo)
        self._offsets[index] = _Offsets(-before)
        for at in range(0, len(tokens), PART_TOKENS):
            part = self._logprobs_object(index, tokens[at : at + PART_TOKENS])
            if not at:
                part["token_logprobs"][0] = part["top_logprobs"][0] = None
            yield part

    def echo(self, index: int, text: str, logprobs: dict[str, list[Any]] | None) -> dict[str, Any]:
        """Builds a chunk with the text of a prompt, or with logprobs of more of its tokens."""
        chunk = self.chunk(index, text)
        chunk["choices"][0]["logprobs"] = logprobs
        return chunk

    def chunk(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob] = (), finish: str | None = None
    ) -> dict[str, Any]:
        """Builds a chunk with more text of a choice, or with its end."""
        chunk = {**self._head, "choices": [self._choice(index, text, logprobs, finish)], **self._tail}
        return sse.obfuscated(chunk) if self._obfuscated and text else chunk

    def usage(self, usage: Usage) -> dict[str, Any]:
        """Builds the final usage chunk, sent only if requested."""
        return {**self._head, "choices": [], "usage": usage_object(usage)}

    def _choice(self, index: int, text: str, tokens: Sequence[TokenLogprob], finish: str | None) -> dict[str, Any]:
        logprobs = self._logprobs_object(index, tokens) if self._logprobs and tokens else None
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs_object(self, index: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        offsets = self._offsets.setdefault(index, _Offsets())
        return {
            "tokens": [_text(token.piece) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_top(token) for token in tokens],
            "text_offset": [offsets.take(token.piece) for token in tokens],
        }


class _Offsets:
    """The places of a choice's tokens in its text, in characters."""

    def __init__(self, start: int = 0) -> None:
        """`start`: the place of the first token; below 0 if the text begins within or after it."""
        self._at = start
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def take(self, piece: bytes) -> int:
        """Returns the place of the next token: the number of whole characters before it."""
        at = self._at
        self._at += len(self._decode(piece))
        return max(0, at)


def _top(token: TokenLogprob) -> dict[str, float]:
    """Returns the likeliest tokens and, as OpenAI does, the token itself; of equal texts the likeliest."""
    found: dict[str, float] = {}
    for piece, logprob in (*token.top, (token.piece, token.logprob)):
        found.setdefault(_text(piece), logprob)
    return found


async def _shared(parts: Iterator[T]) -> AsyncIterator[T]:
    """Lets other requests run between two parts."""
    for part in parts:
        yield part
        await asyncio.sleep(0)


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")


async def create_completion(
    models: TextModels, completions: Completions, raw: httpbody_pb2.HttpBody, call: Call
) -> None:
    """Sends one JSON body, or server-sent events if the request sets `stream`."""
    given, request = read_request(raw)
    call.ignore_unknown(unknown_parameters(raw, LegacyRequest, {"chat_template_kwargs": ({},)}))
    stored = await models.find(request.model)
    call.model = stored.id
    with body.called(constrained(given, FREE_TEXT)[1]):
        async with completions.complete(stored, request, call.client) as completion:
            call.ignore(completion.ignored)
            await _answer(given, request, completion, call)
            call.facts["usage"] = completion.usage.facts


async def _answer(given: LegacyRequest, request: CompletionRequest, completion: Completion, call: Call) -> None:
    head = {"id": completion.id, "created": completion.created, "model": completion.model_id}
    options = given.stream_options or StreamOptions()
    include_usage = bool(options.include_usage)
    logprobs, obfuscated = request.logprobs is not None, bool(options.include_obfuscation)
    writer = LegacyWriter(head, logprobs=logprobs, include_usage=include_usage, obfuscated=obfuscated)
    if given.stream:
        await _stream(completion, writer, request if given.echo else None, include_usage, call)
        return
    await completion.whole()
    answers = [choice.content for choice in completion.choices]
    echoes = [_echo(request, completion, index) if given.echo else "" for index in range(len(answers))]
    whole = json_body(await writer.whole(answers, echoes, completion.usage))
    await send_body(call, whole.content_type, whole.data)


async def _stream(
    completion: Completion, writer: LegacyWriter, echoed: CompletionRequest | None, include_usage: bool, call: Call
) -> None:
    begun: set[int] = set()
    while not completion.finished:
        events: list[dict[str, Any]] = []
        for index, event in await completion.ready():
            if index not in begun:
                begun.add(index)
                if echoed:
                    await _send_echo(echoed, completion, index, writer, call)
            if isinstance(event, TextDelta):
                events.append(writer.chunk(index, event.text, event.logprobs))
            elif isinstance(event, Finished):
                events.append(writer.chunk(index, "", finish=event.reason))
        if completion.finished and include_usage:
            events.append(writer.usage(completion.usage))
        end = (sse.DONE,) if completion.finished else ()
        await call.send(sse.body((*map(sse.data, events), *end)))


async def _send_echo(
    request: CompletionRequest, completion: Completion, index: int, writer: LegacyWriter, call: Call
) -> None:
    """Sends the text of a choice's prompt, and its logprobs in parts."""
    text = _echo(request, completion, index)
    parts = writer.scored(index, completion.choices[index].content, text)
    await call.send(sse.body((sse.data(writer.echo(index, text, next(parts, None))),)))
    for part in parts:
        await call.send(sse.body((sse.data(writer.echo(index, "", part)),)))


def _echo(request: CompletionRequest, completion: Completion, index: int) -> str:
    """Returns a choice's prompt as text. The choice must have begun: the worker decodes prompts given as tokens."""
    prompt = request.prompts[index // request.choices]
    return prompt if isinstance(prompt, str) else completion.choices[index].prompt
