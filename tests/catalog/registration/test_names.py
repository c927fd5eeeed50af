"""Model ids and aliases: the allowed names, and the parameter that an error names."""

from __future__ import annotations

import pytest

from services.catalog.registration.names import MAX_ALIASES, check_aliases, check_id
from services.errors import InvalidRequest
from tests.case import case


def test_allowed() -> None:
    for name in ["a", "7", "gpt-4o", "org/name", "a.b_c-d:e/f@g+h", "x" * 128, "m:updated", "a..b"]:
        with case(name=name):
            check_id(name)
            check_aliases([name], "other")


WRONG = ["", "/a", "-a", ".a", "a b", "ä", "a\n", "a\x00", "x" * 129, "a//b", "a/../b", "a/..", "a/./b", "a/", "a?b"]
WRONG += ["a%2fb", "m:update", "m:load", "org/m:unload", "a\\b", "a#b"]


def test_refused() -> None:
    for name in WRONG:
        with case(name=name):
            with pytest.raises(InvalidRequest) as caught:
                check_id(name)
            assert caught.value.param == "id"
            with pytest.raises(InvalidRequest) as caught:
                check_aliases(["good", name], "other")
            assert caught.value.param == "aliases"


def test_aliases_are_few_and_each_is_there_once() -> None:
    check_aliases([f"a{number}" for number in range(MAX_ALIASES)], "m")
    with pytest.raises(InvalidRequest, match="may have 32 aliases; 33 were given"):
        check_aliases([f"a{number}" for number in range(MAX_ALIASES + 1)], "m")
    with pytest.raises(InvalidRequest, match="'a' appears twice"):
        check_aliases(["a", "b", "a"], "m")
    with pytest.raises(InvalidRequest, match="'m' is the model's id"):
        check_aliases(["m"], "m")
