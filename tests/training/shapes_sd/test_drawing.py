"""Pictures and captions of scenes; no held-out pair is among the training scenes."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy
import pytest

from tests.case import case
from tests.late import late
from training.shapes_sd.drawing import MARGIN, SIDE, coverage, draw, draw_busy
from training.shapes_sd.scene import COLOURS, HELD_OUT, POSITIONS, SHAPES, SIZES, Scene, forget, random_scene

autoencoding = late("training.shapes_sd.autoencoding")
latents = late("training.shapes_sd.latents")

every_shape = pytest.mark.parametrize("shape", SHAPES)


def test_a_picture_has_its_background_at_the_edge_and_its_colour_inside() -> None:
    rng = numpy.random.default_rng(1)
    for background, colour in product(COLOURS, COLOURS):
        picture = draw(Scene(colour, "square", background), rng).astype(int)
        assert picture.shape == (SIDE, SIDE, 3)
        assert abs(picture[0, 0] - COLOURS[background]).max() <= 9
        assert abs(picture[SIDE // 2, SIDE // 2] - COLOURS[colour]).max() <= 9


def test_the_same_seed_makes_the_same_picture() -> None:
    first, second = (draw(Scene("red"), numpy.random.default_rng(4)) for _ in range(2))
    assert (first == second).all()
    assert (first != draw(Scene("red"), numpy.random.default_rng(5))).any()


def test_no_shape_touches_the_edge() -> None:
    for shape in SHAPES:
        for size in [None, *SIZES]:
            for position in [None, *POSITIONS]:
                with case(shape=shape, size=size, position=position):
                    rng = numpy.random.default_rng(2)
                    picture = draw(Scene("red", shape, "white", size, position), rng).astype(int)
                    far = abs(picture - picture[0, 0]).max(axis=-1) > 0
                    assert far.any()
                    rows, columns = numpy.nonzero(far)
                    for edge in (rows.min(), columns.min(), SIDE - 1 - rows.max(), SIDE - 1 - columns.max()):
                        assert edge >= MARGIN - 1


def where(shape: str, rng: numpy.random.Generator, size: str | None, position: str | None) -> tuple[int, float, float]:
    """Returns the size of a black shape and its centre."""
    picture = draw(Scene("black", shape, "white", size, position), rng)[..., 0] < 128
    rows, columns = numpy.nonzero(picture)
    return int(picture.sum()), float(columns.mean()), float(rows.mean())


def test_sizes_and_positions_are_where_they_are_said_to_be() -> None:
    for shape in SHAPES:
        with case(shape=shape):
            covered = partial(where, shape, numpy.random.default_rng(3))
            assert covered("small", None)[0] < covered(None, None)[0] < covered("large", None)[0]
            assert covered("small", "on the left")[1] < 24
            assert covered("small", "on the right")[1] > 40
            assert covered(None, "at the top")[2] < 27
            assert covered(None, "at the bottom")[2] > 37
            _, x, y = covered("small", "in the top right corner")
            assert x > 40
            assert y < 24


def test_shapes_differ_and_one_that_is_not_known_is_refused() -> None:
    masks = [coverage(shape, 32, 32, 20) for shape in SHAPES]
    for index, mask in enumerate(masks):
        assert 0 < mask.mean() < 0.5
        assert all(abs(mask - other).sum() > 100 for other in masks[:index])
    with pytest.raises(ValueError, match="hexagon"):
        coverage("hexagon", 32, 32, 20)


def test_busy_pictures_have_the_size_that_the_autoencoder_takes() -> None:
    given = autoencoding.tensor([draw_busy(numpy.random.default_rng(seed)) for seed in range(3)])
    assert given.shape == (3, 3, SIDE, SIDE)
    assert given.min() >= -1
    assert given.max() <= 1


def test_every_shape_and_colour_is_held_out_in_some_pair_and_learnt_in_others() -> None:
    assert {colour for colour, _ in HELD_OUT} == set(COLOURS)
    assert {shape for _, shape in HELD_OUT} == set(SHAPES)
    for shape in SHAPES:
        assert sum((colour, shape) not in HELD_OUT for colour in COLOURS) >= 8


def test_no_held_out_pair_is_used_for_training() -> None:
    trained = {(scene.colour, scene.shape) for scene in latents.scenes()}
    assert trained == set(product(COLOURS, SHAPES)) - HELD_OUT


def test_only_held_out_pairs_when_they_are_asked_for() -> None:
    rng = numpy.random.default_rng(6)
    asked = [random_scene(rng, held_out=True) for _ in range(500)]
    assert {(scene.colour, scene.shape) for scene in asked} == HELD_OUT
    assert all(scene.held_out and scene.background != scene.colour for scene in asked)


def test_forgetting_leaves_parts_unsaid_and_changes_none() -> None:
    rng = numpy.random.default_rng(7)
    scene = Scene("red", "circle", "blue", "small", "at the top")
    forgotten = [forget(scene, rng, 0.5) for _ in range(100)]
    for name in ("colour", "shape", "background", "size", "position"):
        assert {getattr(each, name) for each in forgotten} == {None, getattr(scene, name)}
    assert forget(scene, rng, 0.0) == scene
