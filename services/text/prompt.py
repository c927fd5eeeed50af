"""Renders a conversation to the prompt's text with the model's Jinja template, in Jinja's sandbox.

The template environment follows transformers' `apply_chat_template`, for which templates are written: `messages`,
`add_generation_prompt`, `bos_token`, `eos_token`, `raise_exception`, `strftime_now`, `tojson`, loop controls, and the
tag `generation`. For templates with limitations the conversation is rewritten without losing content: those of gpt-oss
and Llama 3 use only the first call of a message, and that of gpt-oss drops later system messages and rejects a call
after both reasoning and text.

Templates come with models and are programs. Jinja's sandbox blocks access to other objects, but not endless loops or
texts that fill the memory. So this module is also the program of the confined process that holds one model's template:
`python -m services.text.prompt FD`, run by the text service. It has limited resources, opens no files, and ends with
the service. It sends `ChildReady`, and then answers each order with `Begun`, followed by `Prepared`, `Rendered` or
`OrderRefused`: the template does not compile, rejects the conversation, or fails on it.
"""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NoReturn, cast

import jinja2
import jinja2.constants
import jinja2.debug
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.errors import InvalidRequest, ModelInvalid
from services.sandbox import child
from services.sandbox.child import Begun, ChildReady, OrderRefused, Refusal, Unusable
from services.text.conversation import Message, ReasoningEffort, Tool, ToolCall
from services.text.picture_marks import ContentForm, form_of, shielded
from services.worker.channel import BlockingChannel

# Limits of the renderer process.
MEMORY_BYTES = 1024 * 1024 * 1024  # in addition to the libraries; a conversation may have many megabytes
MAX_PROMPT = 32 * 1024 * 1024  # characters; the longest contexts need a fifth of it
_SYSTEM = ("system", "developer")
# ChatML, which most models without a template understand best.
DEFAULT_TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def with_one_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Merges all system and developer messages into one at the beginning."""
    system = [message for message in messages if message.role in _SYSTEM]
    if not system:
        return messages
    first = replace(system[0], content="\n\n".join(message.content for message in system if message.content))
    return (first, *(message for message in messages if message.role not in _SYSTEM))


def with_thoughts_before_calls(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Moves text before a call into the reasoning, if the message has reasoning."""
    return tuple(
        replace(message, reasoning=f"{message.reasoning}\n\n{message.content}", content="")
        if message.tool_calls and message.reasoning and message.content
        else message
        for message in messages
    )


def one_call_each(messages: tuple[Message, ...]) -> Iterator[Message]:
    """Splits messages with several calls into one message per call, each followed by its result."""
    at = 0
    while at < len(messages):
        message, calls = messages[at], messages[at].tool_calls
        at += 1
        if len(calls) < 2:
            yield message
            continue
        results = list(itertools.takewhile(lambda following: following.role == "tool", messages[at:]))
        at += len(results)
        for call in calls:
            yield replace(message, tool_calls=(call,))
            message = Message(role="assistant", content="")  # text and reasoning stay in the first message
            yield from (result for result in results if result.tool_call_id == call.id)
        called = {call.id for call in calls}
        yield from (result for result in results if result.tool_call_id not in called)


class _TemplateRefused(Exception):
    """The template itself rejects the conversation."""


class _GenerationTag(Extension):
    """The tag `{% generation %}`, which marks the assistant's text for training; only its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own interface)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Replaces the tag by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def thinks(source: str) -> bool:
    """Returns True if a template supports a reasoning effort. Otherwise requests must not set one."""
    return any(word in source for word in ("enable_thinking", "reasoning_effort", "thinking_budget"))


class ChatTemplate:
    """A compiled chat template of a model."""

    def __init__(self, source: str, *, bos: str, eos: str, add_bos: bool) -> None:
        """Compiles `source`; an empty one means the default template.

        `add_bos`: the tokenizer prepends `bos`, so the one from the template is removed.

        Raises:
            ModelInvalid: the template does not compile.
        """
        self._bos, self._eos, self._add_bos = bos, eos, add_bos
        self._form: ContentForm | None = None  # found with the first conversation
        self.thinks = thinks(source)
        self._single_calls = "tool_calls[0]" in source
        self._harmony = "<|channel|>" in source and "<|message|>" in source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        try:
            self._template = environment.from_string(source or DEFAULT_TEMPLATE)
        except (jinja2.TemplateError, SyntaxError, RecursionError) as error:
            # The last two occur because Jinja compiles to Python, which limits the nesting of blocks.
            raise ModelInvalid(f"the model's chat template does not compile: {error}") from error

    def render(
        self,
        messages: tuple[Message, ...],
        tools: tuple[Tool, ...] = (),
        effort: ReasoningEffort = "",
        variables: Mapping[str, Any] = MappingProxyType({}),
        mark: str = "",
    ) -> str:
        """Returns the prompt up to the start of the assistant's answer.

        `tools` are rendered by the template; `effort` is the reasoning effort, if the template supports one;
        `variables` are more of its variables, which override those for an effort; `mark` stands in the prompt for each
        picture, and is a text that no caller knows.

        Raises:
            InvalidRequest: the template rejects the conversation (its message is quoted), fails on it, or omits a
                picture.
        """
        if self._form is None:
            self._form = form_of(lambda content: self._text([{"role": "user", "content": content}]))
        form, pictures = self._form, sum(len(message.pictures) for message in messages)
        shield = mark[::-1] if pictures and form.placeholder else ""
        try:
            dicts = [_as_dict(message, form, mark) for message in self._fitting(messages)]
            functions = [_tool_as_dict(tool) for tool in tools]
            if shield:
                dicts, functions, variables = shielded([dicts, functions, variables], form.placeholder, shield)
            text = self._text(dicts, functions, {**_thinking(effort), **variables})
        except _TemplateRefused as refusal:
            raise InvalidRequest(
                f"the model's chat template refuses the conversation: {refusal}", param="messages"
            ) from refusal
        except Exception as error:
            why = str(error) or type(error).__name__
            raise InvalidRequest(
                f"the model's chat template fails on this conversation: {why}", param="messages"
            ) from error
        if shield:
            text = text.replace(form.placeholder, mark).replace(shield, form.placeholder)
        if pictures and text.count(mark) != pictures:
            raise InvalidRequest("the model's chat template omits a picture of the conversation", param="messages")
        return text.removeprefix(self._bos) if self._add_bos and self._bos else text

    def _text(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        return self._template.render(
            messages=messages,
            add_generation_prompt=True,
            bos_token=self._bos,
            eos_token=self._eos,
            tools=tools or None,
            **variables,
        )

    def _fitting(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Rewrites parts of the conversation that the template would drop or reject."""
        if self._single_calls:
            messages = tuple(one_call_each(messages))
        return with_thoughts_before_calls(with_one_system(messages)) if self._harmony else messages


def _as_dict(message: Message, form: ContentForm, mark: str) -> dict[str, Any]:
    # Most templates predate the developer role.
    role = "system" if message.role == "developer" else message.role
    entry: dict[str, Any] = {"role": role, "content": form.content(message.content, message.pictures, mark)}
    if message.name:
        entry["name"] = message.name
    if message.tool_call_id:
        entry["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        entry["reasoning_content"] = entry["thinking"] = message.reasoning  # templates read one or the other
    if message.tool_calls:
        entry["tool_calls"] = [_call_as_dict(call) for call in message.tool_calls]
    return entry


def _call_as_dict(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call.arguments)}}


def _tool_as_dict(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _thinking(effort: ReasoningEffort) -> dict[str, Any]:
    """Returns the template variables for an effort: a switch for Qwen, GLM and Nemotron, three levels for gpt-oss."""
    if not effort:
        return {}
    level = {"minimal": "low", "xhigh": "high", "max": "high"}.get(effort, effort)
    found: dict[str, Any] = {"enable_thinking": effort != "none"}
    return found if effort == "none" else {**found, "reasoning_effort": level}


def _arguments(text: str) -> Any:
    """Parses arguments, because templates print them as an object; text that is not a JSON object stays text."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return parsed if isinstance(parsed, dict) else text


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise _TemplateRefused(message)


def _now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


# --- the renderer process


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """The first order: a model's template, as reported by its worker."""

    source: str  # Jinja; empty: the default template
    bos: str
    eos: str
    add_bos: bool  # whether the tokenizer prepends `bos` itself
    cpu_seconds: float  # processor time limit for this order and for each conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Render:
    """An order to render a conversation as a prompt."""

    messages: tuple[Message, ...]  # of their pictures, only the places count
    tools: str = "[]"  # a JSON list of objects with the fields of a Tool; its numbers may have any size
    effort: str = ""
    variables: str = "{}"  # a JSON object
    mark: str = ""  # for each picture


@dataclass(frozen=True, slots=True)
class Prepared:
    """The template was compiled."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered prompt."""

    text: str


ToRenderer = Prepare | Render
FromRenderer = ChildReady | Unusable | Begun | Prepared | Rendered | OrderRefused


class _Renderer:
    """The template, from the first order on."""

    def __init__(self) -> None:
        self._template: ChatTemplate | None = None
        self._cpu_seconds = 0.0

    def cpu_seconds(self, order: ToRenderer) -> float:
        """Returns the processor time of an order."""
        if isinstance(order, Prepare):
            self._cpu_seconds = order.cpu_seconds
        return self._cpu_seconds

    def answer(self, order: ToRenderer) -> Prepared | Rendered:
        """Compiles the template, or renders a conversation. Raises Refusal."""
        if isinstance(order, Prepare):
            self._template = _compiled(order)
            return Prepared()
        if self._template is None:
            raise SystemExit("a conversation came before its template")
        return Rendered(_rendered(self._template, order))


def _prepare(_: BlockingChannel[ToRenderer]) -> child.ChildWork:
    _warm_up()
    renderer = _Renderer()
    return child.ChildWork(
        memory_bytes=MEMORY_BYTES,
        cpu_seconds=renderer.cpu_seconds,
        answer=renderer.answer,
        no_memory="the model's chat template needs more memory than a template is allowed",
    )


def _compiled(order: Prepare) -> ChatTemplate:
    try:
        return ChatTemplate(order.source, bos=order.bos, eos=order.eos, add_bos=order.add_bos)
    except ModelInvalid as error:
        raise Refusal(_sendable(error.message)) from None


def _rendered(template: ChatTemplate, order: Render) -> str:
    tools = tuple(Tool(**tool) for tool in json.loads(order.tools))
    try:
        effort = cast(ReasoningEffort, order.effort)
        text = template.render(order.messages, tools, effort, json.loads(order.variables), order.mark)
    except InvalidRequest as error:
        raise Refusal(_sendable(error.message)) from None
    if len(text) > MAX_PROMPT:
        raise Refusal(f"the model's chat template makes a prompt of more than {MAX_PROMPT} characters")
    return _sendable(text)


def _sendable(text: str) -> str:
    """Returns the text, or refuses it if it has half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refusal("the model's chat template produces an unpaired surrogate, which is not valid text") from None
    return text


def _warm_up() -> None:
    """Renders a small conversation, so that all modules are imported and the time zone is read."""
    source = "{{ strftime_now('%Z') }}{{ messages | tojson }}{{ messages | pprint }}"
    ChatTemplate(source, bos="", eos="", add_bos=False).render((Message(role="user", content="Hello"),))
    datetime.datetime.now().astimezone()


if __name__ == "__main__":
    child.run(ToRenderer, _prepare)
