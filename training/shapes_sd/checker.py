"""Judges a picture by its pixels: background, colour and shape, without a learned model.

The edge of the picture is background; pixels far from it in colour are the shape. The checker overlays each known
shape with the same centre and area; the shape with the best overlap wins if the overlap is large enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy

from training.shapes_sd.drawing import SIDE, coverage
from training.shapes_sd.scene import COLOURS, SHAPES, Scene

EDGE = 1  # width of the background edge in pixels
FAINT = 40.0  # RGB distance from the background below which a pixel is not part of a shape
STEEP = 2.0  # contrast of the mask's edges: it suppresses slight noise
FEWEST = 40  # minimum size of a shape in pixels
ALIKE = 0.72  # minimum intersection over union with a known shape
FOREIGN = 70.0  # largest RGB distance from the nearest known colour


@dataclass(frozen=True)
class Verdict:
    """The contents of a picture; None for an unknown colour or shape."""

    background: str | None
    colour: str | None
    shape: str | None
    overlap: float  # intersection over union of the shape with the known shape, 0 to 1

    def colours_right(self, scene: Scene) -> bool:
        """Returns True if background and shape have the requested colours."""
        return (self.background, self.colour) == (scene.background, scene.colour)

    def right(self, scene: Scene) -> bool:
        """Returns True if colours and shape are as requested."""
        return self.colours_right(scene) and self.shape == scene.shape


def judge(picture: numpy.ndarray) -> Verdict:
    """Judges a picture uint8 [64, 64, 3]."""
    pixels = picture.astype(numpy.float32)
    edge = numpy.ones((SIDE, SIDE), dtype=bool)
    edge[EDGE:-EDGE, EDGE:-EDGE] = False
    ground = numpy.median(pixels[edge], axis=0)
    far = numpy.linalg.norm(pixels - ground, axis=-1)
    background = _name(ground)
    if (far > FAINT).sum() < FEWEST:
        return Verdict(background, None, None, 0.0)
    # Smooth edges and the autoencoder's halo have intermediate colours: the median is over the furthest pixels.
    colour = numpy.median(pixels[far > max(FAINT, 0.75 * numpy.percentile(far[far > FAINT], 80))], axis=0)
    along = (pixels - ground) @ (colour - ground) / ((colour - ground) ** 2).sum()
    shape, overlap = _alike(((along - 0.5) * STEEP + 0.5).clip(0, 1))
    return Verdict(background, _name(colour), shape if overlap >= ALIKE else None, overlap)


def _name(colour: numpy.ndarray) -> str | None:
    far = {name: float(numpy.linalg.norm(colour - numpy.array(rgb))) for name, rgb in COLOURS.items()}
    nearest = min(far, key=far.__getitem__)
    return nearest if far[nearest] <= FOREIGN else None


def _alike(mask: numpy.ndarray) -> tuple[str, float]:
    """Returns the shape that covers the mask best, and the overlap."""
    area = float(mask.sum())
    rows, columns = numpy.mgrid[0:SIDE, 0:SIDE] + 0.5
    y, x = float((mask * rows).sum() / area), float((mask * columns).sum() / area)
    overlaps = {}
    for shape in SHAPES:
        radius = (area / _area(shape)) ** 0.5
        like = coverage(shape, x, y, radius)
        overlaps[shape] = float(numpy.minimum(mask, like).sum() / numpy.maximum(mask, like).sum())
    best = max(overlaps, key=overlaps.__getitem__)
    return best, overlaps[best]


@cache
def _area(shape: str) -> float:
    """Returns the area of the shape of radius 1. The centre of all our shapes is also the centroid of their area."""
    return float(coverage(shape, SIDE / 2, SIDE / 2, 24).sum()) / 24**2
