"""The hub's search: the repositories that match some words, with what their listing says about them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from services.errors import ModelInvalid
from services.models.descriptor import Format
from services.models.hub.repository import Remote, endpoint, read_answer, shown_endpoint

MAX_ANSWER = 4 * 1024 * 1024  # bytes
_TEXT = 200  # characters of a value from the hub
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
# The hub's own filters for each format. It has none that all layouts of Whisper share: the task and the name narrow it.
_FILTERS: Mapping[Format, tuple[tuple[str, str], ...]] = {
    "gguf": (("filter", "gguf"),),
    "safetensors": (("filter", "transformers"), ("filter", "safetensors")),
    "whisper": (("pipeline_tag", "automatic-speech-recognition"),),
    "diffusers": (("filter", "diffusers"), ("pipeline_tag", "text-to-image")),
}
_FIELDS = ("config", "downloads", "gated", "gguf", "likes", "pipeline_tag", "tags")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRepository:
    """A repository as the hub's search lists it. Texts are empty and numbers 0 if the hub does not say."""

    name: str  # `org/name`
    license: str = ""  # such as `apache-2.0`
    gated: bool = False  # its files need a token whose owner has accepted the publisher's terms
    downloads: int = 0  # of the last month
    likes: int = 0
    task: str = ""  # such as `text-generation`
    architecture: str = ""  # as the format's inspection names it, such as `llama`
    quantization: str = ""  # method in config.json, such as `awq`


class _Query(Remote):
    """The request of a search: `repository` has the query of its address."""

    def __str__(self) -> str:
        return "the search of the hub"

    @property
    def url(self) -> str:
        return f"{endpoint()}/api/models?{self.repository}"


def search_hub(words: str, format: Format, limit: int) -> list[FoundRepository]:
    """Returns at most `limit` repositories of a format, most downloads first. Blocks for half a minute at most.

    Args:
        words: parts of the repository's name; empty: any.

    Raises:
        ModelInvalid: the hub refuses the search, or its answer cannot be read.
        ModelNotReady: the hub cannot be reached, fails, or HF_HUB_OFFLINE is set.
        Overloaded: the hub asks to retry later.
    """
    words = words or ("whisper" if format == "whisper" else "")
    query = [("search", words)] if words else []
    query += [*_FILTERS[format], ("sort", "downloads"), ("limit", str(limit))]
    query += [("expand", field) for field in _FIELDS]
    remote = _Query(urlencode(query), "", "")
    try:
        found = json.loads(read_answer(remote, MAX_ANSWER))
    except (ValueError, RecursionError) as error:
        raise ModelInvalid(f"{remote}: the answer of {shown_endpoint()} cannot be read") from error
    if not isinstance(found, list):
        raise ModelInvalid(f"{remote}: the answer of {shown_endpoint()} is not a list")
    read = [_repository(each, format) for each in found[:limit] if isinstance(each, dict)]
    return [each for each in read if each]


def _repository(listed: dict[str, Any], format: Format) -> FoundRepository | None:
    """Reads an entry of the hub's list; None if it has no usable name."""
    name = listed.get("id")
    if not isinstance(name, str) or not _REPOSITORY.fullmatch(name):
        return None
    tags = [tag for tag in _list(listed.get("tags")) if isinstance(tag, str)]
    config, gguf = _object(listed.get("config")), _object(listed.get("gguf"))
    architecture = {
        "gguf": gguf.get("architecture"),
        "diffusers": _tagged(tags, "diffusers:"),
    }.get(format, config.get("model_type"))
    return FoundRepository(
        name=name,
        license=_tagged(tags, "license:"),
        gated=listed.get("gated") not in (None, False, "false"),
        downloads=_count(listed.get("downloads")),
        likes=_count(listed.get("likes")),
        task=_word(listed.get("pipeline_tag")),
        architecture=_word(architecture),
        quantization=_word(_object(config.get("quantization_config")).get("quant_method")),
    )


def _tagged(tags: list[str], prefix: str) -> str:
    return _word(next((tag.removeprefix(prefix) for tag in tags if tag.startswith(prefix)), ""))


def _word(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _TEXT and value.isprintable() else ""


def _count(value: object) -> int:
    return min(value, 2**62) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
