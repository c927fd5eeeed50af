"""The dialects: the markup that model families use for tool calls and reasoning, and the choice of a model's dialect.

To add a dialect, add a file in this folder and a line in this file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.text.parsers import glm, harmony, hermes, llama3, mistral, nemotron, plain, qwen_xml
from services.text.parsers.parser import Parser, ToolShape

__all__ = ["Dialect", "ToolShape", "choose"]


class MakeParser(Protocol):
    """A factory for parsers, one per answer."""

    def __call__(self, tools: Sequence[ToolShape], *, reasoning_open: bool) -> Parser:
        """`reasoning_open`: the prompt ends inside a reasoning block. Calls of tools not in `tools` are text."""
        ...


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
    parser: MakeParser
    call_grammar: MakeGrammar


HARMONY = Dialect("harmony", True, True, harmony.parser, harmony.call_grammar)
MISTRAL = Dialect("mistral", True, True, mistral.parser, mistral.call_grammar)
MISTRAL_LIST = Dialect("mistral-list", True, True, mistral.parser, mistral.list_grammar)
NEMOTRON = Dialect("nemotron", True, True, nemotron.parser, nemotron.call_grammar)
GLM = Dialect("glm", True, True, glm.parser, glm.call_grammar)
QWEN_XML = Dialect("qwen-xml", True, True, qwen_xml.parser, qwen_xml.call_grammar)
HERMES = Dialect("hermes", True, True, hermes.parser, hermes.call_grammar)
LLAMA3 = Dialect("llama3", True, True, llama3.parser, llama3.call_grammar)
# For templates without tools, or with an unknown tool format: the prompt describes the tools in the most common format.
HERMES_IN_PROMPT = Dialect("hermes-in-prompt", False, False, hermes.parser, hermes.call_grammar)
PLAIN = Dialect("plain", False, False, plain.parser, plain.call_grammar)

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
