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
        help="ID is the name in requests. SOURCE is `org/name[@revision][:quantization]` on the hub, the address of a "
        "page of the hub, or a path of this machine.",
    ),
]
NewSource = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="`hf://org/name[@revision][#file]`, or a path of this machine. Default: the present source, at its newest "
        "commit.",
    ),
]
FoundFormat = Annotated[
    Format | None,
    typer.Option(case_sensitive=False, help="The format of the files. Default: found from the files."),
]
ModelId = Annotated[str, typer.Argument(metavar="ID", help="Id or alias of the model.")]
Address = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="The address of allm. Default: that of `allm serve` on this machine.")
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the model is ready, or return at once.")]
Timeout = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Longest wait in seconds; 0: no limit.")]
Alias = Annotated[
    list[str] | None, typer.Option("--alias", metavar="NAME", help="Another name of the model in requests; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(?:@[^@:\s]+)?(?::\S+)?", re.ASCII)
_ZERO = "0: the service's setting, `{}`."
Runtime = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The runtime, such as `llama_cpp` or `torch`. Default, or '': the best one."),
]
LoadRuntime = Annotated[
    str,
    typer.Option(metavar="NAME", help="The runtime, such as `torch`. Default: the registered one, or the best one."),
]
TensorParallel = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help=f"GPUs that share every layer; {_ZERO.format('ALLM_TENSOR_PARALLEL')}"),
]
PipelineParallel = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Groups of layers, usually one on each machine; 0: one."),
]
ContextTokens = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help=f"Most tokens of prompt and answer together; {_ZERO.format('ALLM_CONTEXT_TOKENS')}"
    ),
]
MaxSequences = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help=f"Requests at the same time; {_ZERO.format('ALLM_MAX_SEQUENCES')}"),
]
KvTokens = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help=f"Tokens of all requests together in the KV cache; {_ZERO.format('ALLM_KV_TOKENS')}"
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(metavar="|".join(DTYPES), help="Precision of a model in safetensors. Default: `ALLM_DTYPE`."),
]
Speculation = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(SPECULATIONS),
        help="Guess several tokens at once from the prompt, or not. Default, or '': `ALLM_SPECULATION`.",
    ),
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
    raise Problem(f"{text} is not a file or folder on this machine; a repository of the hub is hf://org/name")


Base = Annotated[
    str,
    typer.Option(
        metavar="SOURCE", help="The model from which a single-file image checkpoint takes its configuration, as SOURCE."
    ),
]
Loras = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        metavar="SOURCE[=SCALE]",
        help="A LoRA for an image model, and its strength, by default 1; repeatable.",
    ),
]
Steps = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Denoising steps of an image, unless the request names some.")
]
Guidance = Annotated[
    float | None,
    typer.Option(min=0, metavar="SCALE", help="How closely an image follows its prompt, unless the request says it."),
]


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
