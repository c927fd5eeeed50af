"""Options of the model commands, such as a model's source, its runtime and engine, and an image model's parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from allm.models.v1 import model_pb2

from services.cli.problem import Problem
from services.models.descriptor import Format
from services.models.hub.names import after_hub
from services.settings.modality_settings import DTYPES, SPECULATIONS

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="[ID] SOURCE",
        help="The name that requests use, and `org/name[@revision][:quantization]`, the address of a page of the hub, "
        "or a path.",
    ),
]
FoundFormat = Annotated[
    Format | None,
    typer.Option(case_sensitive=False, help="The format of its files; default: what they are. It never changes."),
]
ModelId = Annotated[str, typer.Argument(metavar="ID", help="Id or alias of the model.")]
Address = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="The address of allm; default: the one on this machine.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(?:@[^@:\s]+)?(?::\S+)?", re.ASCII)
_AS_SET = "0: the setting of its service."
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
Speculation = Annotated[
    str | None, typer.Option(metavar="|".join(SPECULATIONS), help="How tokens are guessed; '': as its service is set.")
]


def engine_settings(**options: int | str | None) -> model_pb2.EngineSettings | None:
    """Returns the engine settings; None if none is given. `options` are named as the fields."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return model_pb2.EngineSettings(**given) if given else None


def run_with(model: model_pb2.Model) -> str:
    """Formats a model's engine settings for people; empty: all as its service is set."""
    parts = [f"{field.name}={value}" for field, value in model.engine.ListFields()]
    return ", ".join(parts)


def short_source(text: str) -> str:
    """Converts a path of this machine to a URL, and leaves all else to the catalog. Raises Problem for a bad path."""
    at_hub = after_hub(text) or _REPOSITORY.fullmatch(text)
    return text if at_hub and not Path(text).exists() else source_url(text)


def source_url(text: str) -> str:
    """Converts a source for the catalog: a local path becomes a URL. Raises Problem if the path does not exist."""
    if "://" in text:
        return text
    try:
        path = Path(text).expanduser()
        if path.exists():
            return path.absolute().as_uri()
    except (OSError, RuntimeError, ValueError) as error:
        raise Problem(f"{text} cannot be read: {error}") from error
    raise Problem(f"{text} is not a file or folder on this machine; write a hub repository as hf://org/name")


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
