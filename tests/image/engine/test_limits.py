"""Limits of a request, and the errors for exceeding them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from services.image.engine.limits import check
from services.image.engine.messages import GuidanceRange, PipelineReady
from services.worker.messages import EngineError
from tests.case import case
from tests.image.engine.scripted_images import READY, Scripted, asked

IMAGE, MASK = bytes(64 * 64 * 3), bytes(64 * 64)


def refusal(ready: PipelineReady = READY, **changed: object) -> EngineError:
    with pytest.raises(EngineError) as refused:
        check(asked(**changed), Scripted(ready))
    return refused.value


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"count": 10, "steps": 100, "partials": 3, "seed": 2**64 - 1, "scheduler": "euler"},
        {"width": 16, "height": 256},
        {"image": IMAGE, "strength": 0.25},
        {"image": IMAGE, "mask": MASK, "guidance": 0.0},
    ],
)
def test_fitting_entries_are_counted(changed: dict) -> None:
    assert check(asked(prompt="a b c", **changed), Scripted()) == 3


def test_the_negative_prompt_counts_too() -> None:
    assert check(asked(prompt="a b c", negative="d e"), Scripted()) == 5


def test_mismatch_is_refused_by_name() -> None:
    for changed, param in [
        ({"width": 60}, "size"),
        ({"height": 8}, "size"),
        ({"width": 512}, "size"),
        ({"width": 136, "height": 128}, "size"),
        ({"width": 0}, "size"),
        ({"count": 0}, "n"),
        ({"count": 11}, "n"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"steps": 0}, "steps"),
        ({"steps": 101}, "steps"),
        ({"guidance": -1.0}, "guidance"),
        ({"guidance": math.nan}, "guidance"),
        ({"guidance": math.inf}, "guidance"),
        ({"scheduler": "magic"}, "scheduler"),
        ({"partials": 4}, "partial_images"),
        ({"mask": MASK}, "mask"),
        ({"image": IMAGE, "mask": MASK[1:]}, "mask"),
        ({"image": IMAGE[1:]}, "image"),
        ({"image": IMAGE, "strength": 0.0}, "strength"),
        ({"image": IMAGE, "strength": math.nan}, "strength"),
        ({"image": IMAGE, "strength": 1.5}, "strength"),
        ({"image": IMAGE, "strength": 0.2}, "strength"),
        ({"negative": "rain", "guidance": 1.0}, "negative_prompt"),
        ({"negative": "rain and so much more of it"}, "negative_prompt"),
        ({"prompt": "a b c d e f"}, "prompt"),
    ]:
        with case(changed=changed, param=param):
            refused = refusal(**changed)
            assert (refused.code, refused.param) == ("INVALID_REQUEST", param)


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers() -> None:
    assert refusal(prompt="word " * 10_000).message == (
        "the prompt has 10000 tokens; this model's text encoder takes at most 5"
    )


@pytest.mark.parametrize(
    ("lacking", "changed", "param"),
    [
        ({"negative": False}, {"negative": "rain"}, "negative_prompt"),
        ({"guidance": GuidanceRange(default=0.0, minimum=0.0, maximum=0.0)}, {}, "guidance"),
        ({"modes": ["text_to_image"]}, {"image": IMAGE}, "image"),
        ({"modes": ["text_to_image", "image_to_image"]}, {"image": IMAGE, "mask": MASK}, "image"),
        ({"modes": ["inpainting"]}, {}, "prompt"),
    ],
)
def test_unsupported_requests_of_a_model_are_refused_by_name(lacking: dict, changed: dict, param: str) -> None:
    refused = refusal(replace(READY, **lacking), **changed)
    assert (refused.code, refused.param) == ("UNSUPPORTED", param)
