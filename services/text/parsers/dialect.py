"""The dialects: the markup that model families use for tool calls and reasoning, and the choice of a model's dialect.

A dialect reads an answer with a generator: it reads from a Reader and yields when it needs more text. So it is written
as if the whole text were available, and its result cannot depend on how the text was split. To add a dialect, add its
reader and its grammar to a module of this folder, and a line here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.text.conversation import ParsedEvent
from services.text.parsers import harmony, json_calls, xml_calls
from services.text.parsers.bare_calls import BareCalls
from services.text.parsers.reader import Reader, Reading, thoughts
from services.text.parsers.tool_grammar import Tools, ToolShape


class Parser:
    """An incremental parser of one answer, which runs a dialect's generator."""

    def __init__(self, read: Callable[[Reader], Reading[None]], bare: Tools) -> None:
        """`bare`: the tools whose calls need no marks."""
        self._reader = Reader()
        self._steps = read(self._reader)
        self._bare = BareCalls(bare)

    def push(self, text: str) -> list[ParsedEvent]:
        """Adds text and returns the events that are now certain."""
        self._reader.feed(text)
        next(self._steps, None)
        return self._bare.passed(self._reader.take_events())

    def finish(self, *, cut: bool = False) -> list[ParsedEvent]:
        """Ends the text and returns the remaining events. An incomplete call is returned as far as it was read.

        `cut`: the length limit truncated the answer. Incomplete markup at its end is then dropped instead of becoming
        text.
        """
        self._reader.end(cut=cut)
        for _ in self._steps:
            pass
        self._reader.flush()
        return self._bare.passed(self._reader.take_events()) + self._bare.end(cut=cut)


class MakeGrammar(Protocol):
    """A factory for grammars that constrain one answer."""

    def __call__(self, tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
        """Returns a Lark grammar for llguidance of calls whose arguments follow the tools' schemas.

        `required`: the answer has only calls; otherwise it may be text, or text around calls.
        `parallel`: several calls are allowed. The result is empty if the dialect has no calls.
        """
        ...


@dataclass(frozen=True)
class Dialect:
    """The tool call and reasoning format of a model family."""

    name: str
    native: bool  # the chat template itself renders tools, calls and results
    special: bool  # the parser needs the text of control tokens, because some models of the family use them as marks
    read: Callable[[Reader, Tools, bool], Reading[None]]  # reads an answer; True: it begins inside a reasoning block
    call_grammar: MakeGrammar

    def parser(self, tools: Sequence[ToolShape], *, reasoning_open: bool, bare: bool = False) -> Parser:
        """Returns a parser of one answer. Calls of tools not in `tools` are text.

        `reasoning_open`: the prompt ends inside a reasoning block. `bare`: an answer that is nothing but JSON of calls,
        without the dialect's marks, is calls.
        """
        schemas = {tool.name: tool.schema for tool in tools}
        return Parser(lambda reader: self.read(reader, schemas, reasoning_open), schemas if bare else {})


def _read_plain(reader: Reader, _: Tools, reasoning_open: bool) -> Reading[None]:
    """Reads text after optional reasoning, of models that do not support tools."""
    yield from thoughts(reader, is_open=reasoning_open)
    yield from reader.until((), reader.content)


HARMONY = Dialect("harmony", True, True, harmony.read_harmony, harmony.harmony_grammar)
MISTRAL = Dialect("mistral", True, True, json_calls.read_mistral, json_calls.mistral_grammar)
MISTRAL_LIST = Dialect("mistral-list", True, True, json_calls.read_mistral, json_calls.mistral_list_grammar)
NEMOTRON = Dialect("nemotron", True, True, json_calls.read_nemotron, json_calls.nemotron_grammar)
GLM = Dialect("glm", True, True, xml_calls.read_glm, xml_calls.glm_grammar)
QWEN_XML = Dialect("qwen-xml", True, True, xml_calls.read_qwen, xml_calls.qwen_grammar)
HERMES = Dialect("hermes", True, True, json_calls.read_hermes, json_calls.hermes_grammar)
LLAMA3 = Dialect("llama3", True, True, json_calls.read_llama3, json_calls.llama3_grammar)
# For templates without tools, or with an unknown tool format: the prompt describes the tools in the most common format.
HERMES_IN_PROMPT = Dialect("hermes-in-prompt", False, False, json_calls.read_hermes, json_calls.hermes_grammar)
PLAIN = Dialect("plain", False, False, _read_plain, lambda tools, *, required, parallel: "")

# The first dialect whose patterns all match the template is chosen.
_SIGNS: tuple[tuple[Dialect, tuple[str, ...]], ...] = (
    (HARMONY, (r"<\|channel\|>", r"<\|message\|>")),
    (MISTRAL, (r"\[TOOL_CALLS\]", r"\[ARGS\]")),
    (MISTRAL_LIST, (r"\[TOOL_CALLS\]",)),
    (NEMOTRON, (r"<TOOLCALL>\[",)),
    (GLM, (r"<tool_call>", r"<arg_key>")),
    (QWEN_XML, (r"<tool_call>(?:\n|\\n)<function=", r"<parameter=")),
    # The name follows the mark, possibly after Jinja's braces and quotes.
    (HERMES, (r"<tool_call>(?:\\n|[\s\\\"'{}-])*name\\?[\"']",)),
    (LLAMA3, (r"\"parameters\": dictionary",)),
)
# Templates with such a message have no system prompt that could describe tools.
_NO_SYSTEM = re.compile(r"system (?:role|message|prompt)s? (?:is |are )?not supported", re.IGNORECASE)


def choose(template: str, architecture: str) -> Dialect:
    """Chooses a model's dialect by its chat template and its architecture, as GGUF or config.json spells it."""
    if architecture in ("gpt-oss", "gpt_oss"):
        return HARMONY
    for dialect, signs in _SIGNS:
        if all(re.search(sign, template) for sign in signs):
            return dialect
    return PLAIN if _NO_SYSTEM.search(template) else HERMES_IN_PROMPT
