"""Pictures of one to three shapes, and the labels that questions ask for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from training.shapes_sd.drawing import MARGIN, RADIUS, SIDE, coverage
from training.shapes_sd.scene import COLOURS, POSITIONS, SHAPES

SEVERAL = 0.3  # share of pictures with more than one shape
SEVERAL_RADIUS = (7.5, 11.0)  # of these shapes, in pixels
APART = 2.0  # pixels between two shapes, at least
WOBBLE = 3.0  # largest offset of a centre in pixels
SIZES = {"small": RADIUS["small"], "medium": RADIUS[None], "large": RADIUS["large"]}
# Other colours that people call by these names. A drawing's colours are between one of these and shapes-sd's.
ALSO: dict[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((255, 0, 0), (180, 20, 30)),
    "orange": ((255, 165, 0), (240, 120, 0)),
    "yellow": ((255, 255, 0), (255, 240, 90)),
    "green": ((0, 255, 0), (0, 128, 0)),
    "blue": ((0, 0, 255), (60, 110, 235)),
    "purple": ((128, 0, 128), (150, 60, 210)),
    "pink": ((255, 192, 203), (255, 105, 180)),
    "black": ((0, 0, 0), (10, 10, 15)),
    "white": ((255, 255, 255), (250, 250, 250)),
    "gray": ((128, 128, 128), (150, 150, 150)),
}


@dataclass(frozen=True)
class Thing:
    """One shape of a picture. `position` is one of POSITIONS, `size` one of SIZES."""

    colour: str
    shape: str
    size: str
    position: str


@dataclass(frozen=True)
class Seen:
    """The content of a picture: its shapes from left to right, then from top to bottom."""

    background: str
    things: tuple[Thing, ...]


def random_picture(rng: numpy.random.Generator) -> tuple[Seen, numpy.ndarray]:
    """Returns a picture uint8 [64, 64, 3] and its content. No shape has the background's colour."""
    names = rng.permutation(list(COLOURS)).tolist()
    background = names.pop()
    places = _several(rng) if rng.random() < SEVERAL else [_single(rng)]
    picture = numpy.broadcast_to(_paint(background, rng), (SIDE, SIDE, 3))
    things = []
    for size, position, x, y, radius in places:
        thing = Thing(names[rng.integers(len(names))], SHAPES[rng.integers(len(SHAPES))], size, position)
        covered = coverage(thing.shape, x, y, radius)[..., None]
        picture = picture * (1 - covered) + _paint(thing.colour, rng) * covered
        things.append(thing)
    return Seen(background, _ordered(things)), picture.round().clip(0, 255).astype(numpy.uint8)


def _ordered(things: list[Thing]) -> tuple[Thing, ...]:
    return tuple(sorted(things, key=lambda thing: POSITIONS[thing.position]))


def _single(rng: numpy.random.Generator) -> tuple[str, str, float, float, float]:
    size, position = str(rng.choice(list(SIZES))), str(rng.choice(list(POSITIONS)))
    return size, position, *_centre(position, radius := float(rng.uniform(*SIZES[size])), rng), radius


def _several(rng: numpy.random.Generator) -> list[tuple[str, str, float, float, float]]:
    """Places two or three shapes that do not touch."""
    places: list[tuple[str, str, float, float, float]] = []
    wanted = rng.integers(2, 4)
    while len(places) < wanted:
        position, radius = str(rng.choice(list(POSITIONS))), float(rng.uniform(*SEVERAL_RADIUS))
        x, y = _centre(position, radius, rng)
        if all(((x - ox) ** 2 + (y - oy) ** 2) ** 0.5 > radius + r + APART for _, _, ox, oy, r in places):
            places.append(("small", position, x, y, radius))
    return places


def _centre(position: str, radius: float, rng: numpy.random.Generator) -> tuple[float, float]:
    x, y = (
        min(max(part * SIDE + rng.uniform(-WOBBLE, WOBBLE), radius + MARGIN), SIDE - radius - MARGIN)
        for part in POSITIONS[position]
    )
    return x, y


def _paint(name: str, rng: numpy.random.Generator) -> numpy.ndarray:
    """Returns a colour of that name: float [3], 0 to 255."""
    ends = numpy.array([COLOURS[name], *ALSO[name]], dtype=float)
    shares = rng.dirichlet([0.4] * len(ends))
    return numpy.clip(shares @ ends + rng.uniform(-8, 8, 3), 0, 255)
