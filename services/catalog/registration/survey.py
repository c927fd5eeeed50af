"""Surveys of sources: lists, checks and pins their files, in threads, since disks and hubs may be slow."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from services.catalog.registration.composition import Composition, compose, open_source
from services.catalog.registration.hub_choice import HubReference, choose_file, with_file
from services.catalog.registration.hub_search import HubFinding, look_into
from services.errors import ModelInvalid, Overloaded
from services.models.artifacts import KnownArtifact, SupportedModels, allowed
from services.models.descriptor import Format, ModelFacts
from services.models.desired import Artifact, ModelPart
from services.models.formats.inspect import inspect
from services.models.hub.search import search_hub
from services.models.hub.source import HubSource, Source, parse_source
from services.models.manifest import Manifest
from services.settings.settings import ModelSettings

log = logging.getLogger(__name__)
T = TypeVar("T")

AT_ONCE = 4  # surveys that run at a time
MAX_WAITING = 64
ARTIFACT_SECONDS = 30.0  # after that a registration continues without its execution caches


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The result of a survey: a source that can be a model."""

    facts: ModelFacts
    manifest: Manifest
    fingerprint: str  # of the local files' present state; empty for the hub
    parts: tuple[ModelPart, ...]
    artifacts: tuple[Artifact, ...]


class Surveyor:
    """Surveys sources, a few at the same time."""

    def __init__(self, settings: ModelSettings, supported: SupportedModels) -> None:
        self._settings = settings
        self._supported = supported
        self._threads = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="catalog-survey")
        self._open = 0

    async def survey(self, model_id: str, source: Source, format: Format, composition: Composition) -> Survey:
        """Lists and checks a source, the model's other parts, and its execution caches.

        Raises:
            ModelInvalid: files are missing, damaged or ambiguous; the message names them.
            InvalidRequest, ModelNotReady, Overloaded: from opening and inspecting the source; Overloaded also if too
                many surveys wait.
        """
        with self._place():
            found = await self._in_thread(lambda: self._inspect(model_id, source, format, composition))
            return replace(found, artifacts=await self._artifacts(source, found.facts))

    async def choose(self, reference: HubReference) -> tuple[str, Format]:
        """Returns the source and the format of the model that a reference names.

        Raises:
            InvalidRequest, ModelInvalid, ModelNotReady, Overloaded: as `survey`; also if no file fits the reference.
        """
        source = parse_source(reference.source, self._settings.roots)
        with self._place():
            format, file = await self._in_thread(lambda: self._choose(source, reference))
        return with_file(reference.source, file), format

    def _choose(self, source: Source, reference: HubReference) -> tuple[Format, str]:
        tree, file = open_source(source, self._settings.roots)
        return choose_file(tree, replace(reference, tag=reference.tag or file))

    async def search(self, words: str, format: Format, limit: int) -> list[HubFinding]:
        """Returns repositories of the hub with their models.

        Raises:
            ModelInvalid, ModelNotReady, Overloaded: as `search_hub`; Overloaded also if too many surveys wait.
        """
        with self._place():
            found = await self._in_thread(lambda: search_hub(words, format, limit))
            return list(await asyncio.gather(*(self._in_thread(partial(look_into, one, format)) for one in found)))

    def close(self) -> None:
        """Accepts no more surveys; running ones end by their own limits."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _inspect(self, model_id: str, source: Source, format: Format, composition: Composition) -> Survey:
        """Surveys everything except execution caches."""
        tree, file = open_source(source, self._settings.roots)
        finding = inspect(tree, format, file)
        manifest = finding.manifest(tree)
        parts = compose(finding, composition, self._settings.roots)
        manifests = [manifest, *(part.manifest for part in parts)]
        for one in manifests:
            _check_text(one)
        facts = replace(finding.facts(model_id), size=sum(one.size for one in manifests))
        fingerprint = fingerprint_of(*manifests)
        return Survey(facts=facts, manifest=manifest, fingerprint=fingerprint, parts=parts, artifacts=())

    async def _artifacts(self, source: Source, facts: ModelFacts) -> tuple[Artifact, ...]:
        """Returns the usable execution caches. If one is unusable, the model is registered without it."""
        if not isinstance(source, HubSource) or facts.format != "safetensors":
            return ()
        wanted = [
            known for known in self._supported.artifacts_of(source.repository) if self._is_allowed(known, facts.id)
        ]
        if not wanted:
            return ()
        try:
            inspected = self._in_thread(lambda: [_inspect_artifact(known, facts) for known in wanted])
            found = await asyncio.wait_for(inspected, ARTIFACT_SECONDS)
        except TimeoutError:
            log.warning("execution caches skipped: the hub takes too long", extra={"model": facts.id})
            return ()
        return tuple(artifact for artifact in found if artifact)

    def _is_allowed(self, known: KnownArtifact, model_id: str) -> bool:
        """Decides whether an execution cache may be used, before any request for it is sent."""
        reason = ""
        if not self._settings.artifacts:
            reason = "ALLM_ARTIFACTS is off"
        elif not allowed(known.source.repository, self._settings.publishers):
            reason = "ALLM_ARTIFACT_PUBLISHERS does not have its publisher"
        if reason:
            _log_skipped(model_id, known, reason)
        return not reason

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Takes one of the places for surveys. Raises Overloaded if all are taken."""
        if self._open >= AT_ONCE + MAX_WAITING:
            raise Overloaded(f"{self._open} registrations are being checked already, which is the limit", retry_after=5)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def _in_thread(self, work: Callable[[], T]) -> T:
        context = contextvars.copy_context()  # its log lines have the request's id
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, work)


def fingerprint_of(*manifests: Manifest) -> str:
    """Returns a hash of the local files' sizes and times (same-size edits count too); empty if all are on the hub.

    Raises:
        ModelInvalid: a file has disappeared meanwhile.
    """
    local = [manifest for manifest in manifests if manifest.folder]
    if not local:
        return ""
    try:
        stats = [(file.path, Path(one.folder, file.path).stat()) for one in local for file in one.files]
    except OSError as error:
        raise ModelInvalid(f"{error.filename or 'a file'}: {error.strerror}") from error
    seen = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def _inspect_artifact(known: KnownArtifact, owner: ModelFacts) -> Artifact | None:
    try:
        tree, file = open_source(known.source, ())
        finding = inspect(tree, known.format, file)
        manifest = finding.manifest(tree)
        _check_text(manifest)
    except Exception as error:
        # Any exception: a registration never fails because of an optional part.
        _log_skipped(owner.id, known, str(error))
        return None
    # The model's own facts stay as registered; only the fields that a runtime reads come from the cache.
    facts = replace(
        owner,
        format=known.format,
        architecture=finding.architecture,
        size=manifest.size,
        quantization=finding.quantization,
        unpacked_size=finding.unpacked_size,
    )
    return Artifact(runtime=known.runtime, devices=known.devices, facts=facts, manifest=manifest)


def _log_skipped(model_id: str, known: KnownArtifact, reason: str) -> None:
    facts = {"model": model_id, "artifact": known.source.repository, "reason": reason}
    log.warning("execution cache skipped", extra=facts)


def _check_text(manifest: Manifest) -> None:
    """Checks that all names are UTF-8: names on a disk may be any bytes, but only text can be stored and sent."""
    for name in (manifest.folder, *(file.path for file in manifest.files)):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ModelInvalid(f"the name {name!a} is not UTF-8: rename it") from error
