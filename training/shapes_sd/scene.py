"""The content of a picture: one coloured shape of some size and position on a plain background."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy

# Far apart from each other, so that colours stay distinct after the autoencoder.
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 35, 35),
    "orange": (245, 140, 20),
    "yellow": (250, 225, 45),
    "green": (35, 160, 60),
    "blue": (35, 75, 220),
    "purple": (135, 45, 175),
    "pink": (250, 150, 195),
    "black": (20, 20, 20),
    "white": (245, 245, 245),
    "gray": (128, 128, 128),
}
SHAPES = ("circle", "square", "triangle", "star", "ring", "cross")
SIZES = ("small", "large")
# The centre of the shape, as fractions of the picture's width and height.
POSITIONS: dict[str, tuple[float, float]] = {
    "in the center": (0.5, 0.5),
    "on the left": (0.28, 0.5),
    "on the right": (0.72, 0.5),
    "at the top": (0.5, 0.28),
    "at the bottom": (0.5, 0.72),
    "in the top left corner": (0.28, 0.28),
    "in the top right corner": (0.72, 0.28),
    "in the bottom left corner": (0.28, 0.72),
    "in the bottom right corner": (0.72, 0.72),
}
# Training never draws or describes these pairs: a model that draws them has generalised.
# Every shape and every colour is in one of these pairs, and training uses each in other pairs.
HELD_OUT = frozenset(
    {
        ("red", "star"),
        ("orange", "square"),
        ("yellow", "triangle"),
        ("green", "cross"),
        ("blue", "ring"),
        ("purple", "circle"),
        ("pink", "square"),
        ("black", "triangle"),
        ("white", "cross"),
        ("gray", "star"),
    }
)


@dataclass(frozen=True)
class Scene:
    """The parts of a picture. None is unspecified: any value will do (for size and position: the default)."""

    colour: str | None = None
    shape: str | None = None
    background: str | None = None
    size: str | None = None
    position: str | None = None

    @property
    def held_out(self) -> bool:
        """Returns True if the pair of colour and shape is kept out of training."""
        return (self.colour, self.shape) in HELD_OUT


def random_scene(rng: numpy.random.Generator, *, held_out: bool = False) -> Scene:
    """Returns a scene with colour, shape and background: a held-out pair if `held_out`, else any other pair.

    Half of the scenes have a size (each equally often), half a position. The background is never the shape's colour.
    """
    names = list(COLOURS)
    while True:
        colour, shape = names[rng.integers(len(names))], SHAPES[rng.integers(len(SHAPES))]
        if ((colour, shape) in HELD_OUT) == held_out:
            break
    others = [name for name in names if name != colour]
    size = SIZES[rng.integers(len(SIZES))] if rng.random() < 0.5 else None
    position = list(POSITIONS)[rng.integers(len(POSITIONS))] if rng.random() < 0.5 else None
    return Scene(colour, shape, others[rng.integers(len(others))], size, position)


def forget(scene: Scene, rng: numpy.random.Generator, chance: float) -> Scene:
    """Returns the scene; each part is left unspecified at the given chance."""
    parts = {name: None for name in ("colour", "shape", "background", "size", "position") if rng.random() < chance}
    return replace(scene, **parts)
