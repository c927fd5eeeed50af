"""Captions: they name every part that a scene specifies, and never a held-out pair."""

from __future__ import annotations

import re

import numpy
import pytest

from tests.late import late
from training.shapes_sd.caption import Wording, plain_caption, worded_caption, words
from training.shapes_sd.scene import COLOURS, HELD_OUT, SHAPES, Scene

latents = late("training.shapes_sd.latents")
reading = late("training.shapes_sd.reading")

PLAINLY = Wording(prefix=0, order=0, synonym=0, noise=0)


@pytest.mark.parametrize(
    ("scene", "caption"),
    [
        (Scene("red", "circle", "blue"), "a red circle on a blue background"),
        (Scene("orange", "star", "white", "small"), "a small orange star on a white background"),
        (Scene("orange", "star", "orange"), "an orange star on an orange background"),
        (
            Scene("black", "ring", "pink", "large", "in the top left corner"),
            "a large black ring in the top left corner on a pink background",
        ),
    ],
)
def test_the_plain_form(scene: Scene, caption: str) -> None:
    assert plain_caption(scene) == caption
    assert worded_caption(scene, numpy.random.default_rng(1), PLAINLY).replace("grey", "gray") == caption


def test_missing_attributes_are_not_in_the_caption() -> None:
    rng = numpy.random.default_rng(2)
    for _ in range(200):
        caption = worded_caption(Scene(colour="red"), rng, reading.WORDING)
        said = set(re.findall("[a-z]+", caption))
        assert "red" in said
        assert not said & ({*COLOURS, *SHAPES, "background", "grey"} - {"red"})
    assert worded_caption(Scene(), rng, PLAINLY) == ""


def test_every_wording_names_the_colours() -> None:
    rng = numpy.random.default_rng(3)
    for _ in range(300):
        caption = worded_caption(Scene("purple", "star", "yellow", "small", "at the top"), rng, reading.WORDING)
        assert {"purple", "star", "yellow"} <= set(re.findall("[a-z]+", caption))


def test_no_caption_of_training_says_a_held_out_pair() -> None:
    rng = numpy.random.default_rng(4)
    for scene in latents.scenes()[:4_000]:
        caption = worded_caption(scene, rng, reading.WORDING)
        for colour, shape in HELD_OUT:
            assert f"{colour} {shape}" not in caption.replace("grey", "gray")


def test_words_come_once_and_in_lower_case() -> None:
    assert len(words()) == len(set(words()))
    assert all(re.fullmatch("[a-z]+", word) for word in words())
    assert {*COLOURS, *SHAPES, "background", "corner", "drawing"} <= set(words())
