"""The checker on drawn pictures, which it must judge correctly before it may judge generated ones."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from training.shapes_sd.checker import judge
from training.shapes_sd.drawing import SIDE, draw
from training.shapes_sd.scene import COLOURS, SHAPES, Scene, random_scene

PICTURES = 500


@pytest.fixture(scope="module")
def drawn() -> list[tuple[Scene, numpy.ndarray]]:
    rng = numpy.random.default_rng(17)
    scenes = [random_scene(rng, held_out=index % 4 == 0) for index in range(PICTURES)]
    return [(scene, draw(scene, rng)) for scene in scenes]


def test_the_checker_recognises_99_of_100_pictures(drawn: list[tuple[Scene, numpy.ndarray]]) -> None:
    assert sum(judge(picture).right(scene) for scene, picture in drawn) >= 0.99 * PICTURES


def test_it_accepts_at_most_5_of_100_captions_of_other_pictures(drawn: list[tuple[Scene, numpy.ndarray]]) -> None:
    """The captions differ from the picture in one part only: these are the hardest."""
    rng = numpy.random.default_rng(18)
    accepted = dict.fromkeys(("colour", "background", "shape"), 0)
    for scene, picture in drawn:
        verdict = judge(picture)
        for part in accepted:
            names = [name for name in (SHAPES if part == "shape" else COLOURS) if name != getattr(scene, part)]
            accepted[part] += verdict.right(replace(scene, **{part: names[rng.integers(len(names))]}))
    assert all(count <= 0.05 * PICTURES for count in accepted.values()), accepted


def test_slight_noise_and_blur_do_not_mislead_it(drawn: list[tuple[Scene, numpy.ndarray]]) -> None:
    rng = numpy.random.default_rng(19)
    right = 0
    for scene, picture in drawn[:200]:
        soft = picture.astype(float)
        soft = (soft + numpy.roll(soft, 1, 0) + numpy.roll(soft, 1, 1) + numpy.roll(soft, -1, 0)) / 4
        noisy = (soft + rng.normal(0, 6, soft.shape)).clip(0, 255).astype(numpy.uint8)
        right += judge(noisy).right(scene)
    assert right >= 0.95 * 200


def test_an_empty_picture_has_a_background_and_nothing_else() -> None:
    verdict = judge(numpy.full((SIDE, SIDE, 3), COLOURS["green"], dtype=numpy.uint8))
    assert (verdict.background, verdict.colour, verdict.shape) == ("green", None, None)


def test_noise_is_no_shape() -> None:
    verdict = judge(numpy.random.default_rng(20).integers(0, 256, (SIDE, SIDE, 3), dtype=numpy.uint8))
    assert verdict.shape is None


def test_half_a_picture_in_another_colour_is_no_shape() -> None:
    picture = numpy.full((SIDE, SIDE, 3), 245, dtype=numpy.uint8)
    picture[10:, 20:44] = COLOURS["red"]
    assert judge(picture).shape is None
