"""What the text service and a renderer process say to each other: a renderer has one chat template.

The renderer says `Ready`, and then answers each order with `Begun`, and with `Prepared`, `Rendered`,
`Broken` or `Refused`.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.sandbox.messages import Begun, Ready, Unusable
from services.text.conversation import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """First order: the template of a model, as the model's worker has told it."""

    source: str  # Jinja; empty: the default template
    bos: str
    eos: str
    add_bos: bool  # whether the tokenizer puts `bos` in front by itself
    cpu_seconds: float  # of the processor's time, for this and for every conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Render:
    """A conversation that becomes a prompt."""

    messages: tuple[Message, ...]
    tools: str = "[]"  # JSON, whose numbers may be of any size: a list of objects with the fields of a Tool
    effort: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The template is compiled."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt."""

    text: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The template is no template; the message says why."""

    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The template refuses the conversation, or fails on it; the message is for the caller."""

    message: str


ToRenderer = Prepare | Render
FromRenderer = Ready | Unusable | Begun | Prepared | Rendered | Broken | Refused
Answer = Prepared | Rendered | Broken | Refused
