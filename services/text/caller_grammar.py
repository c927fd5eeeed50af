"""Grammars that callers write for an answer's text: choices, a regex, Lark or GBNF, checked and in llguidance's Lark.

A caller's grammar may take long to compile, so only the confined process that checks schemas calls this module.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from services.errors import InvalidRequest
from services.text.engine.constraint import LIMITS, in_one_line
from services.text.gbnf import GbnfError, lark_of
from services.text.parsers.tool_grammar import literal

_LIMITS: Any = LLParserLimits(**LIMITS, verbose_errors=False)  # the worker has the same
# The whole answer matches a regex anyway. llguidance does not know these anchors.
_FRONT = re.compile(r"\A(?:\^|\\A)")
_BACK = re.compile(r"(?<!\\)((?:\\\\)*)(?:\$|\\Z|\\z)\Z")


def answer_lark(kind: str, source: str, param: str) -> str:
    """Returns a grammar in Lark. `source`: of choices a JSON list, otherwise the caller's text.

    Raises:
        InvalidRequest: it has an error, or is too complex; `param` names it.
    """
    try:
        lark = _translated(kind, source)
    except GbnfError as error:
        raise InvalidRequest(f"'{param}' is not a GBNF grammar: {error}", param=param) from None
    if problem := compile_error(lark):
        raise InvalidRequest(f"'{param}' cannot be used: {problem}", param=param)
    return lark


def compile_error(grammar: str) -> str:
    """Returns the compiler's error on one line; empty if the grammar compiles within the worker's limits."""
    return in_one_line(LLMatcher.validate_grammar(grammar, limits=_LIMITS))


def _translated(kind: str, source: str) -> str:
    if kind == "choice":
        return f"start: {' | '.join(map(literal, json.loads(source)))}"
    if kind == "regex":
        regex = _BACK.sub(r"\1", _FRONT.sub("", source))
        lark: str = json.loads(LLMatcher.grammar_from_regex(f"(?:{regex})"))["grammars"][0]["lark_grammar"]
        return lark
    return lark_of(source) if kind == "gbnf" else source
