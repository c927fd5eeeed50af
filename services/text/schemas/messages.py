"""Messages between the text service and a process that checks JSON Schemas, which callers write.

The process sends `Ready`, and then answers each order with `Begun`, followed by `Checked` or `Refused`: a schema cannot
be followed, and `param` names it.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.sandbox.child import Begun, Ready, Refused, Unusable

OUTPUT = "response_format"  # the name of the output's schema in errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """An order to check all schemas of one request. Schemas are JSON texts, because numbers may have any size."""

    output: str  # of the answer; empty: none
    tools: tuple[tuple[str, bool | None], ...]  # of each tool: schema (empty: none) and strict; None: if it is possible
    constrained: bool  # whether a grammar is made even if no tool is strict


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer: everything compiles."""

    strict: tuple[bool, ...]  # of each tool
    schemas: tuple[str, ...]  # of each tool, in the form that the compiler supports; empty: no grammar is made


ToChecker = Check
FromChecker = Ready | Unusable | Begun | Checked | Refused
