"""The chat core, which both wire formats call: generates the assistant's next message of a conversation.

It renders the prompt, and builds the grammar that constrains the answer from the request's schemas."""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from llguidance import LLMatcher

from services.auth.caller import current_caller
from services.errors import ContextLengthExceeded, InvalidRequest, Unsupported
from services.models.store import StoredModel
from services.telemetry import tracing
from services.text.conversation import ChatRequest, Message, OutputFormat, Picture, ReasoningEffort, Tool, ToolCall
from services.text.engine.messages import Pixels
from services.text.engine.sampling import without_effect
from services.text.loaded import LoadedTextModel
from services.text.manager import TextModels
from services.text.parsers.dialect import HARMONY, PLAIN, Dialect
from services.text.parsers.tool_grammar import ToolShape
from services.text.picture_inputs import MAX_REQUEST_PIXELS, PictureInputs
from services.text.picture_urls import decoded
from services.text.running_answer import Choice, Completion
from services.text.schema import fit
from services.text.schema_checker import SchemaChecker

# The prompt ends within a reasoning block that the template has opened.
_OPEN_THOUGHT = re.compile(r"<think>\s*\Z")
# Harmony uses channels to separate reasoning from the answer.
_FINAL_CHANNEL = (
    r'(<|channel|> "analysis" <|message|> /(.|\n)*/ <|end|> <|start|> "assistant")? <|channel|> "final" <|message|>'
)
# Allows indented JSON, but bounds white space, so that the model cannot write it endlessly.
_SPACES = {"whitespace_pattern": r"\n?[ ]{0,16}"}
# A complete reasoning block before the answer, if the prompt has already opened it.
_THOUGHT = r"thought[lazy]: /(.|\n)*<\/think>\s*/"
_CALLERS = "callers"  # the name of a caller's own grammar
_INTRODUCTION = """You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class Chat:
    """Answers chat requests."""

    def __init__(self, models: TextModels, schemas: SchemaChecker, pictures: PictureInputs) -> None:
        self._models = models
        self._schemas = schemas
        self._pictures = pictures

    async def close(self) -> None:
        """Ends the process that checks schemas."""
        await self._schemas.close()

    async def checked(self, request: ChatRequest) -> ChatRequest:
        """Returns the request with its schemas checked. Raises as `SchemaChecker.checked`."""
        return await self._schemas.checked(request)

    async def output_grammar(self, output: OutputFormat) -> str:
        """Returns the grammar of a text alone; empty if it is unconstrained. Raises as `SchemaChecker.checked`."""
        lark = await self._schemas.lark(output)
        rule = output_rule(output)
        return grammar_text(f"start: {rule}", lark) if rule else ""

    async def lasting(self, url: str, param: str) -> str:
        """Returns a picture's address for a store. Returns and raises as `PictureInputs.lasting`."""
        return await self._pictures.lasting(url, param)

    async def count(self, stored: StoredModel, request: ChatRequest, client: str) -> int:
        """Counts the tokens of the prompt. Raises as `complete`."""
        check_sight(stored, request)
        async with self._models.loaded(stored) as model, self._seen(model, request) as pixels:
            sampling, mark = dataclasses.replace(request.sampling, max_tokens=1), _mark(pixels)
            prompt = await _prompt(model, request, mark)
            async with model.generate(client, prompt, sampling, pictures=pixels, mark=mark) as answer:
                return await answer.accepted()

    @asynccontextmanager
    async def complete(self, stored: StoredModel, request: ChatRequest, client: str) -> AsyncIterator[Completion]:
        """Runs a completion while the block runs; leaving it early stops the model.

        Raises:
            ModelInvalid, ModelNotReady, Unsupported: the model cannot be served.
            InvalidRequest: the conversation does not fit the model, or a schema is not supported.
            Others as `PictureInputs.pixels`.
            Overloaded: the queue is full, or the caller's key has exhausted its tokens per minute.
        """
        caller = current_caller()
        await caller.admit()
        if request.tool_schemas is None:
            request = await self.checked(request)
        check_sight(stored, request)
        async with self._models.loaded(stored) as model, AsyncExitStack() as stack:
            reading = await stack.enter_async_context(AsyncExitStack())
            pixels = await reading.enter_async_context(self._seen(model, request))
            mark = _mark(pixels)
            with tracing.part("render"):
                prompt = await _prompt(model, request, mark)
            reasoning_open = bool(_OPEN_THOUGHT.search(prompt))
            grammar = grammar_of(request, model.dialect, reasoning_open=reasoning_open)
            tools = [ToolShape(tool.name, tool.parameters) for tool in request.callable_tools]
            bare = request.tool_choice.mode == "auto" and request.output.kind == "text"
            choices = []
            for number in range(request.choices):
                sampling = request.sampling.for_choice(number)
                answer = await stack.enter_async_context(
                    model.generate(
                        client,
                        prompt,
                        sampling,
                        grammar,
                        request.logprobs,
                        request.cache_key,
                        prediction=request.prediction,
                        pictures=pixels,
                        mark=mark,
                        room_required=request.room_required,
                    )
                )
                parser = model.dialect.parser(tools, reasoning_open=reasoning_open, bare=bare)
                choices.append(Choice(answer, parser, parallel=request.parallel_tool_calls))
            del pixels  # the worker has them; an answer may take long
            ignored = _ignored(model, request, grammar)
            completion = Completion(stored.id, choices, ignored=ignored, begun=reading.aclose)
            stack.callback(lambda: caller.spend(completion.computed))
            stack.push_async_callback(completion.close)
            yield completion

    @asynccontextmanager
    async def _seen(self, model: LoadedTextModel, request: ChatRequest) -> AsyncIterator[tuple[Pixels, ...]]:
        """Yields the pictures of a request. Raises Unsupported for a model that does not see, or as
        `PictureInputs.pixels`.
        """
        pictures = request.pictures
        if not pictures:
            yield ()
            return
        if not model.ready.sees:
            raise _blind(request)
        async with self._pictures.pixels([await decoded(picture) for picture in pictures]) as pixels:
            count = sum(each.width * each.height for each in pixels) * request.choices
            if count > MAX_REQUEST_PIXELS:  # each choice is a request to the worker
                reason = f"the pictures of its {request.choices} choices have {count} pixels together"
                raise InvalidRequest(f"'n': {reason}; at most {MAX_REQUEST_PIXELS} are allowed.", param="n")
            yield pixels


def check_sight(stored: StoredModel, request: ChatRequest) -> None:
    """Raises Unsupported if a request has pictures and its model does not see. Loads no model."""
    if request.pictures and stored.serving and "vision" not in stored.serving.descriptor.capabilities:
        raise _blind(request)


def _blind(request: ChatRequest) -> Unsupported:
    """Returns the error for a request with pictures, named by the first, and a model that does not see."""
    param = request.pictures[0].param
    return Unsupported(f"'{param}': {request.model} does not see pictures.", param=param)


def _mark(pixels: Sequence[Pixels]) -> str:
    """Returns the text that stands for each picture in a prompt; empty without pictures."""
    return secrets.token_hex(16) if pixels else ""


async def _prompt(model: LoadedTextModel, request: ChatRequest, mark: str) -> str:
    context = model.ready.context_tokens
    if len(request.messages) > context:
        count = f"the conversation has {len(request.messages)} messages"
        raise ContextLengthExceeded(f"{count}, but this model's context holds {context} tokens", param="messages")
    effort = _effort(model, request)
    tools = request.callable_tools
    if tools and model.dialect.name == PLAIN.name:
        raise Unsupported(
            f"{request.model} does not support tools: its chat template has no place for them.", param="tools"
        )
    messages = with_users_pictures(request.messages)
    # If the template does not support tools, the prompt must describe them for a history with calls, too.
    spelled_out = not model.dialect.native and (
        tools or any(message.tool_calls or message.role == "tool" for message in request.messages)
    )
    if spelled_out:
        messages, tools = with_tools(messages, tools), ()
    return await model.template.render(messages, tools, effort, request.template_variables, mark)


def _effort(model: LoadedTextModel, request: ChatRequest) -> ReasoningEffort:
    """Returns the effort of a request, or the model's nearest one. Raises Unsupported if it must be exact."""
    effort, nearest, why = request.reasoning_effort, request.reasoning_effort, ""
    if effort not in ("", "none") and not model.template.thinks:
        nearest, why = "", f"{request.model} does not support reasoning."
    if effort == "none" and model.dialect.name == HARMONY.name:
        nearest, why = "low", f"{request.model} always reasons: 'low' is the lowest."
    if why and request.effort_required:
        raise Unsupported(why, param="reasoning_effort")
    return nearest


def _ignored(model: LoadedTextModel, request: ChatRequest, grammar: str) -> list[str]:
    """Returns the parameters that have no effect on the answer."""
    unused = [f"chat_template_kwargs.{name}" for name in model.template.unused(request.template_variables)]
    if _effort(model, request) != request.reasoning_effort:
        unused.append("reasoning_effort")
    return unused + (without_effect(request.sampling) if grammar else [])


def grammar_of(request: ChatRequest, dialect: Dialect, *, reasoning_open: bool) -> str:
    """Returns the grammar of the answer to a request whose schemas are checked; empty if it is unconstrained.

    It is in llguidance's Lark dialect, with embedded JSON Schema, or JSON with two such grammars; the worker applies it
    during sampling.
    """
    tools = request.callable_tools
    required = bool(tools) and request.tool_choice.mode == "required"
    answer = "" if required else output_rule(request.output)
    if answer and dialect.name == HARMONY.name:
        answer = f"{_FINAL_CHANNEL} {answer}"
    calls = _calls(request, dialect, tools, required=required)
    if not answer and not calls:
        return ""
    rules = []
    if answer:
        rules.append(f"answer: {answer}")
    if calls:
        rules.append(re.sub(r"^start:", "calls:", calls, count=1, flags=re.MULTILINE))
    alternatives = " | ".join(name for name, rule in (("answer", answer), ("calls", calls)) if rule)
    start = f"start: {alternatives}"
    if reasoning_open:
        start = f"start: thought ({alternatives})\n{_THOUGHT}"
    return grammar_text("\n".join([start, *rules]), request.answer_lark if answer else "")


def output_rule(output: OutputFormat) -> str:
    """Returns the rule for an answer's text; empty if it is unconstrained."""
    if output.kind == "text":
        return ""
    if output.kind not in ("json_object", "json_schema"):
        return f"@{_CALLERS}"
    schema = {"type": "object"} if output.schema is None else output.schema
    return f"%json {json.dumps({**fit(schema), 'x-guidance': _SPACES})}"


def grammar_text(lark: str, answer_lark: str) -> str:
    """Returns a grammar for the worker: `lark`, with the caller's own grammar for the rule of the answer's text."""
    if not answer_lark:
        return str(LLMatcher.grammar_from_lark(lark))
    # Apart, the names of its rules cannot clash with ours.
    return json.dumps({"grammars": [{"lark_grammar": lark}, {"name": _CALLERS, "lark_grammar": answer_lark}]})


def _calls(request: ChatRequest, dialect: Dialect, tools: Sequence[Tool], *, required: bool) -> str:
    """Returns the dialect's rules for calls; empty if calls are unconstrained, or if there are no tools."""
    if not tools or not (required or request.output.kind != "text" or any(tool.strict for tool in tools)):
        return ""
    shapes = [ToolShape(tool.name, (request.tool_schemas or {}).get(tool.name)) for tool in tools]
    # With a constrained answer, the output is either that answer or only calls; otherwise text may surround calls.
    whole = required or request.output.kind != "text"
    # A tool choice with one name asks for exactly one call.
    parallel = request.parallel_tool_calls and not (required and len(request.tool_choice.names) == 1)
    return dialect.call_grammar(shapes, required=whole, parallel=parallel)


def with_users_pictures(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Moves the pictures of tool results to the user's next message, because few templates show others."""
    found: list[Message] = []
    moved: tuple[Picture, ...] = ()
    for message in messages:
        if message.role == "tool":
            moved += tuple(replace(picture, at=0) for picture in message.pictures)
            found.append(replace(message, pictures=()))
        elif moved and message.role == "user":
            found.append(replace(message, pictures=(*moved, *message.pictures)))
            moved = ()
        else:
            found += [Message(role="user", content="", pictures=moved), message] if moved else [message]
            moved = ()
    return (*found, Message(role="user", content="", pictures=moved)) if moved else tuple(found)


def with_tools(messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> tuple[Message, ...]:
    """Returns the conversation with tools, calls and results as text, for chat templates without tools.

    The format is that of the Hermes models: tools as JSON lines in the system message, calls as JSON between
    `<tool_call>` tags, results between `<tool_response>` tags in a user message.
    """
    rewritten = tuple(_spelled_out(message) for message in messages)
    if not tools:
        return rewritten
    introduction = _INTRODUCTION.format(tools="\n".join(map(_tool_line, tools)))
    if rewritten and rewritten[0].role in ("system", "developer"):
        first = replace(rewritten[0], content=f"{rewritten[0].content}\n\n{introduction}")
        return (first, *rewritten[1:])
    return (Message(role="system", content=introduction), *rewritten)


def _spelled_out(message: Message) -> Message:
    if message.role == "tool":
        return Message(role="user", content=f"<tool_response>\n{message.content}\n</tool_response>")
    if message.tool_calls:
        calls = "\n".join(map(_call_text, message.tool_calls))
        return replace(message, content=f"{message.content}\n{calls}".strip(), tool_calls=())
    return message


def _tool_line(tool: Tool) -> str:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters or {}}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _call_text(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}\n</tool_call>'
