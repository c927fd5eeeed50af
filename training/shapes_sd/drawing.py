"""Pictures of scenes, 64 x 64 pixels, RGB, with smooth edges."""

from __future__ import annotations

import math

import numpy
from PIL import Image, ImageDraw

from training.shapes_sd.scene import COLOURS, POSITIONS, SHAPES, Scene

SIDE = 64  # side of a picture in pixels
OVERSAMPLED = 4  # supersampling factor: drawing larger and averaging smooths the edges
MARGIN = 2.0  # pixels between a shape and the edge of the picture
# Pixels from the centre to the furthest point.
RADIUS = {"small": (9.0, 11.0), None: (14.0, 17.0), "large": (20.0, 23.0)}
WOBBLE = 1.5  # largest random offset of the centre in pixels, both ways
TINT = 8  # largest random offset of a colour channel, of 255


def coverage(shape: str, x: float, y: float, radius: float) -> numpy.ndarray:
    """Returns each pixel's share that the shape covers: float32 [64, 64], 0 to 1. x, y and radius are in pixels."""
    canvas = Image.new("L", (SIDE * OVERSAMPLED, SIDE * OVERSAMPLED))
    _fill(ImageDraw.Draw(canvas), shape, x * OVERSAMPLED, y * OVERSAMPLED, radius * OVERSAMPLED)
    return numpy.asarray(canvas.reduce(OVERSAMPLED), dtype=numpy.float32) / 255


def draw(scene: Scene, rng: numpy.random.Generator) -> numpy.ndarray:
    """Draws the scene, uint8 [64, 64, 3]. Unspecified colours and shapes are random; unspecified size and position get
    their defaults."""
    names = list(COLOURS)
    colour = scene.colour or _other(names, scene.background, rng)
    background = scene.background or _other(names, colour, rng)
    shape = scene.shape or SHAPES[rng.integers(len(SHAPES))]
    radius = rng.uniform(*RADIUS[scene.size])
    x, y = (
        min(max(part * SIDE + rng.uniform(-WOBBLE, WOBBLE), radius + MARGIN), SIDE - radius - MARGIN)
        for part in POSITIONS[scene.position or "in the center"]
    )
    return _paint(_tinted(background, rng), [(coverage(shape, x, y, radius), _tinted(colour, rng))])


def draw_busy(rng: numpy.random.Generator) -> numpy.ndarray:
    """Draws several shapes in any colours, uint8 [64, 64, 3]: the autoencoder should also handle pictures that are not
    scenes."""
    layers = [
        (
            coverage(SHAPES[rng.integers(len(SHAPES))], *rng.uniform(8, SIDE - 8, 2), rng.uniform(7, 22)),
            rng.uniform(0, 255, 3),
        )
        for _ in range(rng.integers(2, 5))
    ]
    return _paint(rng.uniform(0, 255, 3), layers)


def _paint(background: numpy.ndarray, layers: list[tuple[numpy.ndarray, numpy.ndarray]]) -> numpy.ndarray:
    picture = numpy.broadcast_to(background, (SIDE, SIDE, 3))
    for covered, colour in layers:
        picture = picture * (1 - covered[..., None]) + colour * covered[..., None]
    return picture.round().clip(0, 255).astype(numpy.uint8)


def _tinted(name: str, rng: numpy.random.Generator) -> numpy.ndarray:
    return numpy.clip(numpy.array(COLOURS[name]) + rng.uniform(-TINT, TINT, 3), 0, 255)


def _other(names: list[str], than: str | None, rng: numpy.random.Generator) -> str:
    others = [name for name in names if name != than]
    return others[rng.integers(len(others))]


def _fill(pen: ImageDraw.ImageDraw, shape: str, x: float, y: float, radius: float) -> None:
    if shape in ("circle", "ring"):
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
        if shape == "ring":
            hole = radius * 0.55
            pen.ellipse((x - hole, y - hole, x + hole, y + hole), fill=0)
    elif shape == "square":
        half = radius * 0.82
        pen.rectangle((x - half, y - half, x + half, y + half), fill=255)
    elif shape == "triangle":
        pen.polygon(_corners(x, y, [radius] * 3), fill=255)
    elif shape == "star":
        pen.polygon(_corners(x, y, [radius, radius * 0.42] * 5), fill=255)
    elif shape == "cross":
        arm = radius * 0.32
        pen.rectangle((x - arm, y - radius, x + arm, y + radius), fill=255)
        pen.rectangle((x - radius, y - arm, x + radius, y + arm), fill=255)
    else:
        raise ValueError(f"{shape!r} is none of {SHAPES}")


def _corners(x: float, y: float, radii: list[float]) -> list[tuple[float, float]]:
    """Returns corners at equal angles, the first at the top."""
    turn = 2 * math.pi / len(radii)
    return [(x + r * math.sin(i * turn), y - r * math.cos(i * turn)) for i, r in enumerate(radii)]
