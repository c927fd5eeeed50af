"""Pictures as network input, changed as pictures on their way to a model are: noise, blur, JPEG."""

from __future__ import annotations

import io

import numpy
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from training.shapes_vlm.architecture import DEVIATION, MEAN

PLAIN = 0.5  # share of pictures that stay as they are


def pixels(pictures: numpy.ndarray) -> Tensor:
    """Normalises pictures uint8 [n, height, width, 3] to network input: float [n, 3, height, width]."""
    scaled = torch.from_numpy(pictures).float() / 255
    return ((scaled - torch.tensor(MEAN)) / torch.tensor(DEVIATION)).permute(0, 3, 1, 2).contiguous()


def worn(picture: numpy.ndarray, rng: numpy.random.Generator) -> numpy.ndarray:
    """Returns the picture uint8 [height, width, 3], possibly with noise, blurred, compressed or brightened."""
    if rng.random() < PLAIN:
        return picture
    way = rng.integers(4)
    if way == 0:
        noisy = picture + rng.normal(0, rng.uniform(2, 14), picture.shape)
        return noisy.round().clip(0, 255).astype(numpy.uint8)
    if way == 1:
        image = Image.fromarray(picture).filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.0)))
    elif way == 2:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=int(rng.integers(40, 96)))
        image = Image.open(file)
    else:
        return (picture * rng.uniform(0.92, 1.06)).round().clip(0, 255).astype(numpy.uint8)
    return numpy.asarray(image.convert("RGB"))
