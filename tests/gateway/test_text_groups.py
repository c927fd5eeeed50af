"""Routes of model groups: their order of precedence, and names matched literally."""

from __future__ import annotations

import re
from typing import Any

from gateway.text_groups import NO_GROUPS, PATHS, TextGroups
from services.settings.model_groups import ModelGroups

MODELS = ModelGroups((("large", ("a/b.c", "qwen*", "g")), ("code", ("qwen-coder*", "qwen"))))
GROUPS = TextGroups((("large", ("l:1",)), ("code", ("c:1",))), MODELS)


def wanted(route: dict[str, Any]) -> dict[str, Any]:
    match = route["match"]
    found = match["dynamic_metadata"][0]["value"] if "dynamic_metadata" in match else match["headers"][0]
    return dict(found["string_match"])


def test_without_groups_there_are_no_routes() -> None:
    assert NO_GROUPS.routes({}) == []


def test_whole_names_come_before_prefixes_and_long_prefixes_before_short_ones() -> None:
    routes = GROUPS.routes({"large": {}, "code": {}})
    assert {route["match"]["prefix"] for route in routes} == set(PATHS)
    for path in PATHS:
        for kind in ("dynamic_metadata", "headers"):
            ours = [route for route in routes if route["match"]["prefix"] == path and kind in route["match"]]
            order = [(route["route"]["cluster"], next(iter(wanted(route)))) for route in ours]
            assert order == [
                ("text-large", "safe_regex"),
                ("text-code", "safe_regex"),
                ("text-code", "prefix"),
                ("text-large", "prefix"),
            ]


def test_a_name_is_no_pattern() -> None:
    pattern = wanted(GROUPS.routes({"large": {}, "code": {}})[0])["safe_regex"]["regex"]
    assert [bool(re.fullmatch(pattern, name)) for name in ("a/b.c", "g", "g:latest")] == [True] * 3
    assert not any(re.fullmatch(pattern, name) for name in ("a/bxc", "gg", "g:1b"))
