"""The markup that a model's family uses for calls and thoughts, and which one a model speaks.

A dialect is one file beside this one and one line here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.text.parsers import glm, harmony, hermes, llama3, mistral, nemotron, plain, qwen_xml
from services.text.parsers.parser import Parser
from services.text.parsers.tool_shape import ToolShape

__all__ = ["Dialect", "ToolShape", "choose"]


class MakeParser(Protocol):
    """Makes what reads one answer."""

    def __call__(self, tools: Sequence[ToolShape], *, reasoning_open: bool) -> Parser:
        """`reasoning_open`: the prompt has ended inside a thought. Calls of other tools than these are text."""
        ...


class MakeGrammar(Protocol):
    """Makes what constrains one answer."""

    def __call__(self, tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
        """A Lark grammar for llguidance of calls whose arguments follow the tools' schemas.

        `required`: the answer is calls and nothing else; otherwise it may be text, or have text around them.
        `parallel`: there may be several. Empty where the dialect has no calls.
        """
        ...


@dataclass(frozen=True)
class Dialect:
    """How the models of a family write what is no text."""

    name: str
    native: bool  # the chat template itself shows tools, calls and results
    special: bool  # the parser needs the text of control tokens: in some models of the family the marks are such
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
# For templates that show no tools, or in a way that is not read here: they are told in the form most models know.
HERMES_TOLD = Dialect("hermes-told", False, False, hermes.parser, hermes.call_grammar)
PLAIN = Dialect("plain", False, False, plain.parser, plain.call_grammar)

# The first whose signs are all found in the template is spoken.
_SIGNS: tuple[tuple[Dialect, tuple[str, ...]], ...] = (
    (HARMONY, (r"<\|channel\|>", r"<\|message\|>")),
    (MISTRAL, (r"\[TOOL_CALLS\]", r"\[ARGS\]")),
    (MISTRAL_LIST, (r"\[TOOL_CALLS\]",)),
    (NEMOTRON, (r"<TOOLCALL>\[",)),
    (GLM, (r"<tool_call>", r"<arg_key>")),
    (QWEN_XML, (r"<tool_call>(?:\n|\\n)<function=", r"<parameter=")),
    # The name stands right behind the mark, be it with Jinja's braces and quotes in between.
    (HERMES, (r"<tool_call>(?:\\n|[\s\\\"'{}-])*name\\?[\"']",)),
    (LLAMA3, (r"\"parameters\": dictionary",)),
)
# Templates that say so have no place where tools could be told.
_NO_SYSTEM = re.compile(r"system (?:role|message|prompt)s? (?:is |are )?not supported", re.IGNORECASE)


def choose(template: str, architecture: str) -> Dialect:
    """The dialect of a model, from its chat template and its architecture, as GGUF or config.json spell it."""
    if architecture in ("gpt-oss", "gpt_oss"):
        return HARMONY
    for dialect, signs in _SIGNS:
        if all(re.search(sign, template) for sign in signs):
            return dialect
    return PLAIN if _NO_SYSTEM.search(template) else HERMES_TOLD
