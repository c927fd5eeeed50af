"""Command options for running a model: its runtime, and the engine settings of a text model."""

from __future__ import annotations

from typing import Annotated

import typer
from allm.models.v1 import model_pb2

from services.settings.settings import DTYPES

_AS_SET = "0: as its service is set."
Runtime = Annotated[str | None, typer.Option(metavar="NAME", help="The runtime; default or '': the registry's choice.")]
LoadRuntime = Annotated[
    str,
    typer.Option(metavar="NAME", help="The runtime; default: the registered one, or the registry's choice."),
]
TensorParallel = Annotated[int | None, typer.Option(min=0, help=f"GPUs of a machine that share every layer; {_AS_SET}")]
PipelineParallel = Annotated[
    int | None, typer.Option(min=0, help="Pipeline stages that the layers are divided into, usually one per machine.")
]
ContextTokens = Annotated[int | None, typer.Option(min=0, help=f"Most tokens of prompt and answer; {_AS_SET}")]
MaxSequences = Annotated[int | None, typer.Option(min=0, help=f"Requests that decode at the same time; {_AS_SET}")]
KvTokens = Annotated[int | None, typer.Option(min=0, help=f"Tokens in the cache of all requests; {_AS_SET}")]
Dtype = Annotated[str | None, typer.Option(metavar="|".join(DTYPES), help="Precision of safetensors.")]


def engine_settings(dtype: str | None, **numbers: int | None) -> model_pb2.EngineSettings | None:
    """Returns the engine settings; None if none is given. `numbers` are named as the fields."""
    said = {name: number for name, number in numbers.items() if number is not None}
    if dtype is None and not said:
        return None
    return model_pb2.EngineSettings(dtype=dtype or "", **said)


def run_with(model: model_pb2.Model) -> str:
    """Formats a model's engine settings for people; empty: all as its service is set."""
    parts = [f"{field.name}={value}" for field, value in model.engine.ListFields()]
    return ", ".join(parts)
