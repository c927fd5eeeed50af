"""The places of pictures in a prompt: a mark stands for each picture in the text that a chat template renders.

Most templates of models that see take a list of parts, and print a placeholder for a picture, such as `<image>` or
`<|vision_start|><|image_pad|><|vision_end|>`. It is found by rendering a probe, and replaced by the mark. Other
templates take only strings, so that the mark is put into the text of the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.text.conversation import Picture

Content = str | list[dict[str, Any]]
_BEFORE, _AFTER = "Alfa7", "Zulu9"  # the texts around the picture of a probe


@dataclass(frozen=True, slots=True)
class ContentForm:
    """The form in which a template takes the content of messages."""

    only_parts: bool = False  # whether it takes no strings
    placeholder: str = ""  # printed for a picture; empty: the template does not know pictures

    def content(self, text: str, pictures: Sequence[Picture], mark: str) -> Content:
        """Returns the content of a message for the template."""
        if pictures and not self.placeholder:
            text, pictures = _with_marks(text, pictures, mark), ()
        if not pictures and not self.only_parts:
            return text
        ends = [picture.at for picture in pictures]
        texts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
        parts: list[dict[str, Any]] = [_text(texts[0])] if texts[0] or not pictures else []
        for following in texts[1:]:
            parts.append({"type": "image"})
            if following:
                parts.append(_text(following))
        return parts


def form_of(render: Callable[[Content], str]) -> ContentForm:
    """Returns the form that a template takes. `render` renders a user's message; its exceptions mean that it cannot."""
    texts = [_text(_BEFORE), _text(_AFTER)]
    as_parts = _rendered(render, texts)
    only_parts = _BEFORE not in _rendered(render, _BEFORE) and _BEFORE in as_parts
    seen = _rendered(render, [texts[0], {"type": "image"}, texts[1]])
    return ContentForm(only_parts, _placeholder(as_parts, seen))


def shielded(value: Any, placeholder: str, shield: str) -> Any:
    """Returns a JSON value with `shield` instead of each placeholder in its texts, so that none counts as a picture."""
    if isinstance(value, str):
        return value.replace(placeholder, shield)
    if isinstance(value, Mapping):
        return {shielded(key, placeholder, shield): shielded(each, placeholder, shield) for key, each in value.items()}
    if isinstance(value, list):
        return [shielded(each, placeholder, shield) for each in value]
    return value


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _with_marks(text: str, pictures: Sequence[Picture], mark: str) -> str:
    for picture in reversed(pictures):
        text = f"{text[: picture.at]}{mark}{text[picture.at :]}"
    return text


def _rendered(render: Callable[[Content], str], content: Content) -> str:
    try:
        return render(content)
    except Exception:  # a template is a program, and may fail in any way
        return ""


def _placeholder(without: str, seen: str) -> str:
    """Returns the text, except white space, by which `seen` is longer than `without`, beside a text of the probe.

    Beside another text, it might begin too early, and end too early by as much.
    """
    length = len(seen) - len(without)
    if length <= 0 or _BEFORE not in without or "'type'" in seen or '"type"' in seen:  # it prints the parts themselves
        return ""
    for start in sorted(_edges(without)):
        if seen.startswith(without[:start]) and seen.endswith(without[start:]):
            return seen[start : start + length].strip()
    return ""


def _edges(text: str) -> set[int]:
    """Returns the places beside the texts of the probe, also before and after white space."""
    found = set()
    for probe in re.finditer(f"{_BEFORE}|{_AFTER}", text):
        start, end = probe.span()
        found |= {start, end}
        while start and text[start - 1].isspace():
            start -= 1
            found.add(start)
        while end < len(text) and text[end].isspace():
            end += 1
            found.add(end)
    return found
