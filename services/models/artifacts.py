"""The execution caches that official publishers offer for models (`supported_models.json`), and their allow-list.

This module sends no requests to the hub; it defines which repositories may be used, which publishers are trusted, and
which runtime runs a cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from services.errors import InvalidRequest, ModelInvalid, Unsupported
from services.models.descriptor import EngineSettings, Format
from services.models.desired import Artifact
from services.models.hub.source import HUB_SHAPE, HubSource, parse_source
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import RuntimeSpec
from services.settings.setting import SettingError

SHIPPED = Path(__file__).with_name("supported_models.json")
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
MAX_ARTIFACTS = 32  # of one model
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_PATTERN = re.compile(rf"{_NAME}/(?:\*|{_NAME})")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownArtifact:
    """An execution cache from the data file: its source, and the runtime and devices that may use it."""

    source: HubSource
    format: Format
    runtime: str
    devices: frozenset[str]


class _Artifact(msgspec.Struct, forbid_unknown_fields=True):
    repository: str
    format: Format
    runtime: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    devices: Annotated[list[Literal["cuda", "vulkan", "mps", "cpu"]], msgspec.Meta(min_length=1)]
    revision: str | None = None
    file: str | None = None


class _Model(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    artifacts: Annotated[list[_Artifact], msgspec.Meta(max_length=MAX_ARTIFACTS)] = []


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    models: list[_Model]


class SupportedModels:
    """The parsed data file."""

    def __init__(self, artifacts: Mapping[str, Sequence[KnownArtifact]]) -> None:
        self._artifacts = {repository: tuple(known) for repository, known in artifacts.items()}

    def artifacts_of(self, repository: str) -> tuple[KnownArtifact, ...]:
        """Returns the execution caches for a repository's model, in file order; empty if it is not listed."""
        return self._artifacts.get(repository, ())


def load_supported(path: Path | None) -> SupportedModels:
    """Reads the data file; None: the shipped one.

    Raises:
        ModelInvalid: it cannot be read or is invalid; the message names the file and the position.
    """
    path = path or SHIPPED
    where = f"ALLM_SUPPORTED_MODELS: {path}"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(data) > MAX_DOCUMENT_BYTES:
            raise ModelInvalid(f"{where} is larger than {MAX_DOCUMENT_BYTES} bytes")
        document = msgspec.json.decode(data, type=_Document)
    except OSError as error:
        raise ModelInvalid(f"{where}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelInvalid(f"{where}: {error}") from error
    artifacts: dict[str, list[KnownArtifact]] = {}
    for model in document.models:
        if model.source in artifacts:
            raise ModelInvalid(f"{where}: {model.source!r} appears twice")
        _hub_source(where, model.source, None, None)
        artifacts[model.source] = [_known(where, artifact) for artifact in model.artifacts]
    return SupportedModels(artifacts)


def allowed(repository: str, publishers: Iterable[str]) -> bool:
    """True if the allow-list contains a repository. The only patterns are `org/*` and `org/name`, matched exactly.

    The organisation must match as a whole: `openai/*` does not allow `openai-mirror/x`.
    """
    organisation, slash, name = repository.partition("/")
    if not slash or not organisation or not name or "/" in name:
        return False
    return any(
        pattern in (repository, f"{organisation}/*")
        for pattern in publishers
        if _PATTERN.fullmatch(pattern) is not None
    )


def runtime_of(artifact: Artifact, registry: EngineRegistry, asked: str, engine: EngineSettings) -> RuntimeSpec:
    """Returns the runtime that runs an execution cache on a replica. `asked`: the one that an operator requested.

    Raises:
        Unsupported: the cache is for other devices or another runtime, or the runtime cannot run it.
    """
    device = registry.device_of(artifact.runtime)
    if device not in artifact.devices:
        raise Unsupported(
            f"it is for {', '.join(sorted(artifact.devices))}, and {artifact.runtime} computes on {device} here"
        )
    if asked not in ("", artifact.runtime):
        raise Unsupported(f"it is for {artifact.runtime}, and an operator requested {asked}")
    return registry.resolve(artifact.facts, asked=artifact.runtime, engine=engine)


def check_publishers(publishers: Iterable[str]) -> None:
    """Checks the patterns of an allow-list. Raises SettingError."""
    for pattern in publishers:
        if _PATTERN.fullmatch(pattern) is None:
            raise SettingError("ALLM_ARTIFACT_PUBLISHERS", pattern, "a comma-separated list of `org/*` or `org/name`")


def _known(where: str, artifact: _Artifact) -> KnownArtifact:
    return KnownArtifact(
        source=_hub_source(where, artifact.repository, artifact.revision, artifact.file),
        format=artifact.format,
        runtime=artifact.runtime,
        devices=frozenset(artifact.devices),
    )


def _hub_source(where: str, repository: str, revision: str | None, file: str | None) -> HubSource:
    """Builds a source with the same checks as one that an operator writes."""
    wanted = HubSource(repository, revision or "", file or "")
    text = f"hf://{repository}" + (f"@{revision}" if revision else "") + (f"#{file}" if file else "")
    try:
        found = parse_source(text, ())
    except InvalidRequest as error:
        raise ModelInvalid(f"{where}: {error.message}") from error
    if found != wanted:
        raise ModelInvalid(f"{where}: {text!r} does not have the shape {HUB_SHAPE}")
    return wanted
