"""Names of models as people and clients write them: at the hub, in any spelling of it, and with Ollama's tag."""

from __future__ import annotations

import re
from collections.abc import Callable

HUB = "hf.co/"  # the spelling in the names of pulled models
LATEST = ":latest"  # the tag of a name without one
_SPELLINGS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://")


def after_hub(text: str) -> str | None:
    """Returns what follows the hub in `hf.co/...`, `https://huggingface.co/...` or `hf://...`; None for other texts."""
    match = _SPELLINGS.match(text)
    return text[match.end() :] if match else None


def tagged(name: str) -> str:
    """Returns a name as Ollama's lists show it: with a tag. Clients look models up in these lists."""
    return name if ":" in name else f"{name}{LATEST}"


def known_name(name: str, known: Callable[[str], bool]) -> str:
    """Returns the name under which a model is registered; if it is none, the given one without `:latest`.

    A name without a tag and one with the tag `latest` are the same, unless models with both names are registered. A
    model that was pulled from the hub has its name in every spelling of the hub.
    """
    if (rest := after_hub(name)) is not None:
        name = HUB + rest.replace("#", ":")
    if known(name):
        return name
    if name.endswith(LATEST):
        return name.removesuffix(LATEST)
    return tagged(name) if known(tagged(name)) else name
