"""Judges a picture by its pixels: background, colour and shape, without anything learnt.

The edge of the picture is background; what is far from it in colour is the shape. Of every kind of shape the one of the
same middle and area is laid over it; the kind that covers it best is what it is, if it covers it well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy

from training.shapes_sd.drawing import SIDE, coverage
from training.shapes_sd.scene import COLOURS, SHAPES, Scene

EDGE = 1  # pixels at the edge that are background
FAINT = 40.0  # from the background, as a distance in RGB: less is no shape
STEEP = 2.0  # how much harder edges are made: a slight noise must not count
FEWEST = 40  # pixels of a shape
ALIKE = 0.72  # overlap by union that makes it this kind of shape
FOREIGN = 70.0  # from its nearest colour: more is none of ours


@dataclass(frozen=True)
class Verdict:
    """What a picture shows; None where it is nothing that we draw."""

    background: str | None
    colour: str | None
    shape: str | None
    overlap: float  # of the shape with its like, 0 to 1

    def colours_right(self, scene: Scene) -> bool:
        """Whether background and shape have the colours asked for."""
        return (self.background, self.colour) == (scene.background, scene.colour)

    def right(self, scene: Scene) -> bool:
        """Whether it is also the shape asked for."""
        return self.colours_right(scene) and self.shape == scene.shape


def judge(picture: numpy.ndarray) -> Verdict:
    """What a picture uint8 [64, 64, 3] shows."""
    pixels = picture.astype(numpy.float32)
    edge = numpy.ones((SIDE, SIDE), dtype=bool)
    edge[EDGE:-EDGE, EDGE:-EDGE] = False
    ground = numpy.median(pixels[edge], axis=0)
    far = numpy.linalg.norm(pixels - ground, axis=-1)
    background = _name(ground)
    if (far > FAINT).sum() < FEWEST:
        return Verdict(background, None, None, 0.0)
    # Smooth edges and the autoencoder's halo are between the colours: the middle is taken of what is furthest.
    colour = numpy.median(pixels[far > max(FAINT, 0.75 * numpy.percentile(far[far > FAINT], 80))], axis=0)
    along = (pixels - ground) @ (colour - ground) / ((colour - ground) ** 2).sum()
    shape, overlap = _alike(((along - 0.5) * STEEP + 0.5).clip(0, 1))
    return Verdict(background, _name(colour), shape if overlap >= ALIKE else None, overlap)


def _name(colour: numpy.ndarray) -> str | None:
    far = {name: float(numpy.linalg.norm(colour - numpy.array(rgb))) for name, rgb in COLOURS.items()}
    nearest = min(far, key=far.__getitem__)
    return nearest if far[nearest] <= FOREIGN else None


def _alike(mask: numpy.ndarray) -> tuple[str, float]:
    """The shape that covers the mask best, and how well."""
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
    """Of the shape of radius 1. The middle of all our shapes is also the middle of their area."""
    return float(coverage(shape, SIDE / 2, SIDE / 2, 24).sum()) / 24**2
