"""What a picture shows: one coloured shape of some size, somewhere on a plain background."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy

# Far apart from each other, so that a colour can be told from any other after the autoencoder.
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
# Where the middle of the shape is, as parts of the picture's width and height.
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
# Of these a training picture is never drawn nor a caption written: what the model makes of them it has put together.
# Every shape and every colour is among them, and every shape and colour is learnt in other pairs.
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
    """What is asked for. None: not said, so anything will do (size and position: the ordinary ones)."""

    colour: str | None = None
    shape: str | None = None
    background: str | None = None
    size: str | None = None
    position: str | None = None

    @property
    def held_out(self) -> bool:
        """Whether it is of a pair that is kept out of training."""
        return (self.colour, self.shape) in HELD_OUT


def random_scene(rng: numpy.random.Generator, *, held_out: bool = False) -> Scene:
    """A scene in which colour, shape and background are said: of a held-out pair, or of one that is not.

    Half of the scenes say a size (so many of each), and half a position. The background is never the shape's colour.
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
    """The scene with every part left unsaid at that chance."""
    parts = {name: None for name in ("colour", "shape", "background", "size", "position") if rng.random() < chance}
    return replace(scene, **parts)
