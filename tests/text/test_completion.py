"""A completion of several choices: its total token usage."""

from __future__ import annotations

from typing import Any

import pytest

from services.text.completion import Completion
from services.text.conversation import Usage
from tests.case import case


class Counted:
    """The token counts of a choice."""

    def __init__(self, prompt: int, generated: int) -> None:
        self.computed = (prompt, generated)
        self.usage = Usage(prompt_tokens=prompt, cached_tokens=prompt // 2, completion_tokens=generated)


def test_each_prompt_counts_once_and_every_token_generated() -> None:
    for choices, prompts, tokens in [
        ([(7, 5)], 1, 12),
        ([(0, 0)], 1, 0),
        ([(7, 5), (7, 3), (7, 0)], 1, 15),
        ([(7, 5), (0, 0)], 1, 12),  # the second choice has not begun
        ([(7, 5), (9, 1)], 2, 22),
        ([(7, 5), (7, 1), (9, 1), (0, 0)], 2, 23),
    ]:
        with case(choices=choices, prompts=prompts, tokens=tokens):
            made: Any = [Counted(*each) for each in choices]
            assert Completion("m", made, prompts=prompts).computed == tokens


@pytest.mark.parametrize(
    ("choices", "prompts", "usage"),
    [
        ([(7, 5)], 1, (7, 3, 5)),
        ([(7, 5), (7, 3)], 1, (7, 3, 8)),
        ([(7, 5), (10, 1)], 2, (17, 8, 6)),
        ([(7, 5), (7, 1), (10, 1), (10, 2)], 2, (17, 8, 9)),
    ],
)
def test_callers_see_the_usage_of_all_prompts(
    choices: list[tuple[int, int]], prompts: int, usage: tuple[int, int, int]
) -> None:
    made: Any = [Counted(*each) for each in choices]
    reported = Completion("m", made, prompts=prompts).usage
    assert (reported.prompt_tokens, reported.cached_tokens, reported.completion_tokens) == usage
