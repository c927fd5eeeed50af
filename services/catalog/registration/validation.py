"""Checks of the names, the runtime and the engine settings that an operator requests for a model.

Names are ids and aliases: requests use both."""

from __future__ import annotations

import re
from collections.abc import Sequence

from services.errors import InvalidRequest, Unsupported
from services.models.descriptor import AS_THE_SERVICE_DOES, EngineSettings, Format, Modality
from services.models.runtimes import RUNTIMES
from services.settings.modality_settings import DTYPES, SPECULATIONS

MAX_NAME = 128  # characters
MAX_ALIASES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_VERBS = (":update", ":load", ":unload")  # of the REST paths /v1/models/{id}:verb


def check_id(name: str) -> None:
    """Checks that a name can be an id. Raises InvalidRequest with param `id`."""
    _check(name, "id")


def check_aliases(aliases: Sequence[str], model_id: str) -> None:
    """Checks that the names can be a model's aliases. Raises InvalidRequest with param `aliases`."""
    if len(aliases) > MAX_ALIASES:
        raise InvalidRequest(f"at most {MAX_ALIASES} aliases may be given, not {len(aliases)}", param="aliases")
    seen = {model_id}
    for alias in aliases:
        _check(alias, "aliases")
        if alias in seen:
            what = "is the model's id" if alias == model_id else "appears twice"
            raise InvalidRequest(f"the alias {alias!r} {what}", param="aliases")
        seen.add(alias)


def _check(name: str, param: str) -> None:
    if not name:
        what = "Missing required parameter: 'id'." if param == "id" else "an alias is empty"
        raise InvalidRequest(what, param=param)
    if len(name) > MAX_NAME:
        raise InvalidRequest(f"{name[:MAX_NAME]!r}... is longer than {MAX_NAME} characters", param=param)
    if not _NAME.fullmatch(name):
        allowed = "letters, digits and `._-:/@+`, the first of them a letter or a digit"
        raise InvalidRequest(f"the name {name!r} is not allowed: it must consist of {allowed}", param=param)
    # Proxies resolve such paths, so a request for this model would arrive as one for another.
    if any(segment in ("", ".", "..") for segment in name.split("/")):
        raise InvalidRequest(f"the name {name!r} is not allowed: no part of it may be empty, `.` or `..`", param=param)
    if name.endswith(_VERBS):
        raise InvalidRequest(f"the name {name!r} is not allowed: it ends with {' or '.join(_VERBS)}", param=param)


# The limits of the services' own settings, except 0, which means those settings.
_LIMITS = {
    "tensor_parallel": (1, 64),
    "pipeline_parallel": (1, 64),
    "context_tokens": (16, 10_000_000),
    "max_sequences": (1, 192),
    "kv_tokens": (16, 100_000_000),
}


def check_runtime(name: str, modality: Modality) -> None:
    """Checks that there is a runtime of that name, if one is named. Raises InvalidRequest with param `runtime`.

    It does not check the replicas' offers: a catalog that has just started has not heard from any service yet.
    """
    names = [runtime.name for runtime in RUNTIMES if runtime.modality == modality]
    if name and name not in names:
        what = f"there is no runtime {name!r} for {modality} models: it must be one of {', '.join(names)}"
        raise InvalidRequest(what, param="runtime")


def check_engine(engine: EngineSettings, format: Format, modality: Modality) -> None:
    """Checks that models of that format can run so.

    Raises InvalidRequest or Unsupported; `param` is `engine` or a field of it.
    """
    if engine == AS_THE_SERVICE_DOES:
        return
    if modality != "text":
        raise InvalidRequest(f"'engine' is for text models, not for {modality} models", param="engine")
    for name, (least, most) in _LIMITS.items():
        value = getattr(engine, name)
        if value and not least <= value <= most:
            what = f"must be from {least} to {most}, or 0 for the service's setting, not {value}"
            raise InvalidRequest(f"'engine.{name}' {what}", param=f"engine.{name}")
    if engine.dtype and engine.dtype not in DTYPES:
        what = f"must be one of {', '.join(DTYPES)}, not {engine.dtype[:100]!r}"
        raise InvalidRequest(f"'engine.dtype' {what}", param="engine.dtype")
    if engine.speculation.partition(":")[0] == "draft":
        what = "must be off or ngram: draft models are not supported"
        raise Unsupported(f"'engine.speculation' {what}", param="engine.speculation")
    if engine.speculation and engine.speculation not in SPECULATIONS:
        what = f"must be one of {', '.join(SPECULATIONS)}, not {engine.speculation[:100]!r}"
        raise InvalidRequest(f"'engine.speculation' {what}", param="engine.speculation")
    for name, there in (("dtype", bool(engine.dtype)), ("tensor_parallel", engine.tensor_parallel > 1)):
        if there and format != "safetensors":
            raise InvalidRequest(f"'engine.{name}' is for safetensors, not for {format}", param=f"engine.{name}")


def check_stages(engine: EngineSettings, runtime: str, format: Format) -> None:
    """Checks that the runtime (empty: any) can divide a model into stages, if that is requested.

    Raises:
        InvalidRequest: it cannot; with param `engine.pipeline_parallel`.
    """
    if engine.pipeline_parallel <= 1:
        return
    able = [one.name for one in RUNTIMES if one.pipelines and format in one.formats]
    if not able or runtime not in ("", *able):
        who = f"the runtime {runtime} does" if runtime else f"the runtimes for {format} do"
        what = f"'engine.pipeline_parallel' is {engine.pipeline_parallel}, and {who} not divide models into stages"
        if able:
            what += f": {', '.join(able)} does"
        raise InvalidRequest(what, param="engine.pipeline_parallel")
