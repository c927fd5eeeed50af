"""Command options for image models: a base, LoRAs, and defaults for generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from allm.models.v1 import model_pb2

from services.cli.models.sources import source_url

Base = Annotated[
    str, typer.Option(metavar="SOURCE", help="The source of the configuration for a single-file checkpoint.")
]
Loras = Annotated[list[str] | None, typer.Option("--lora", metavar="SOURCE[=SCALE]", help="A LoRA to add; repeatable.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Default steps of an image.")]
Guidance = Annotated[float | None, typer.Option(min=0, help="Default guidance of an image.")]


def lora_list(texts: Sequence[str] | None) -> list[model_pb2.Lora]:
    """Parses LoRAs, each `SOURCE` or `SOURCE=SCALE`. Raises Problem as `source_url` does."""
    return list(map(_lora, texts or ()))


def image_defaults(steps: int | None, guidance: float | None) -> model_pb2.ImageDefaults | None:
    """Returns a model's image defaults; None if none is given."""
    if steps is None and guidance is None:
        return None
    return model_pb2.ImageDefaults(steps=steps, guidance=guidance)


def _lora(text: str) -> model_pb2.Lora:
    source, mark, scale = text.rpartition("=")
    try:
        found = model_pb2.Lora(scale=float(scale)) if mark else model_pb2.Lora()
    except ValueError:  # a path may contain a `=`
        found, source = model_pb2.Lora(), ""
    found.source = source_url(source or text)
    return found
