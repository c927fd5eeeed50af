"""Messages between the text service and a renderer process, which holds one chat template.

The renderer sends `Ready`, and then answers each order with `Begun`, followed by `Prepared`, `Rendered` or `Refused`:
the template does not compile, rejects the conversation, or fails on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.sandbox.child import Begun, Ready, Refused, Unusable
from services.text.conversation import Message


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

    messages: tuple[Message, ...]
    tools: str = "[]"  # a JSON list of objects with the fields of a Tool; its numbers may have any size
    effort: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The template was compiled."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered prompt."""

    text: str


ToRenderer = Prepare | Render
FromRenderer = Ready | Unusable | Begun | Prepared | Rendered | Refused
