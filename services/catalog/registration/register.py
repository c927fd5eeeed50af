"""Registers models and changes their sources: each change is checked first, then stored, then made visible."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from services.catalog.registration.composition import Composition, LoraChoice, check_defaults
from services.catalog.registration.registrations import Registration, Registrations
from services.catalog.registration.survey import Survey, Surveyor
from services.catalog.registration.validation import check_aliases, check_engine, check_id, check_runtime, check_stages
from services.errors import InvalidRequest
from services.models.descriptor import AS_THE_SERVICE_DOES, FORMATS, EngineSettings, Format, Modality
from services.models.desired import DesiredModel, ImageDefaults
from services.models.hub.source import Source, parse_source
from services.settings.settings import ModelSettings

log = logging.getLogger(__name__)

# The modality of each format. An operator chooses the format, which is fixed for good; no file changes it.
_FOR: dict[Format, Modality] = {"gguf": "text", "safetensors": "text", "whisper": "audio", "diffusers": "image"}


_AS_IT_COMES = Composition()
_AS_THE_PIPELINE_SAYS = ImageDefaults()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModel:
    """An operator's request to register a model, unchecked."""

    id: str
    source: str
    format: str
    modality: str = ""  # empty: the format's modality
    aliases: tuple[str, ...] = ()
    composition: Composition = _AS_IT_COMES
    image_defaults: ImageDefaults = _AS_THE_PIPELINE_SAYS
    runtime: str = ""  # empty: the registry's choice
    engine: EngineSettings = AS_THE_SERVICE_DOES


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The fields of a models file entry that a registration does not have. None: not set, the old value stays."""

    text: str  # text of the whole entry
    runtime: str | None = None  # runtime of a model that is already registered
    keep_loaded: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An operator's change to a registered model; a field that is empty or None stays as it is."""

    source: str = ""
    aliases: tuple[str, ...] | None = None
    base: str = ""
    loras: tuple[LoraChoice, ...] | None = None
    image_defaults: ImageDefaults | None = None
    runtime: str | None = None
    engine: EngineSettings | None = None

    @property
    def surveys(self) -> bool:
        """True if sources are to be surveyed; also for a request that changes nothing."""
        named = bool(self.source or self.base or self.loras is not None)
        others = (self.aliases, self.image_defaults, self.runtime, self.engine)
        return named or all(other is None for other in others)


class Registrar:
    """Registers models and changes their sources and aliases."""

    def __init__(self, registrations: Registrations, surveyor: Surveyor, settings: ModelSettings) -> None:
        self._registrations = registrations
        self._surveyor = surveyor
        self._settings = settings

    async def register(self, new: NewModel) -> Registration:
        """Registers a model.

        Raises:
            InvalidRequest: a parameter is wrong; `param` names it.
            ModelExists: its id or an alias is taken.
            ModelInvalid: a file is missing or invalid; the message names it.
            ModelNotReady, Overloaded: the hub cannot be reached now.
        """
        return await self._register(new, *self._checked(new))

    async def declare(self, new: NewModel, declared: Declared, *, look: bool) -> Registration:
        """Registers a model of the models file, or updates the registered model to match the file.

        Surveys the sources only if the file names different ones than before, or if `look` is set.

        Raises what `register` raises, and InvalidRequest if the format differs from the registered model's.
        """
        format, source = self._checked(new)
        found = self._registrations.find(new.id)
        if found is None:
            return await self._register(new, format, source, declared)
        was = found.desired
        if was.facts.format != format:
            what = f"the model {new.id!r} is registered as {was.facts.format}, and the format of a model cannot change"
            raise InvalidRequest(f"{what}: give it another id", param="format")
        self._registrations.check_aliases_free(found.id, new.aliases)
        survey = None
        if look or (new.source, new.composition) != (was.source, Composition.of(was.parts)):
            survey = await self._surveyor.survey(new.id, source, format, new.composition)
        change = Change(
            source=new.source,
            aliases=new.aliases,
            image_defaults=new.image_defaults,
            runtime=declared.runtime,
            engine=new.engine,
        )

        def work(old: Registration) -> Registration:
            return _with_declared(_changed(old, change, survey), declared)

        changed = await self._registrations.change(found, work)
        log.info("model declared", extra={"model": changed.id, "generation": changed.desired.generation})
        return changed

    def _checked(self, new: NewModel) -> tuple[Format, Source]:
        """Runs all checks that need no files. Raises InvalidRequest."""
        check_id(new.id)
        check_aliases(new.aliases, new.id)
        format = read_format(new.format)
        if new.modality and new.modality != _FOR[format]:
            raise InvalidRequest(f"{format} is for {_FOR[format]} models, not {new.modality!r}", param="modality")
        source = parse_source(new.source, self._settings.roots)
        new.composition.check(format, self._settings.roots)
        check_defaults(new.image_defaults, format)
        check_runtime(new.runtime, _FOR[format])
        check_engine(new.engine, format, _FOR[format])
        check_stages(new.engine, new.runtime, format)
        return format, source

    async def _register(
        self, new: NewModel, format: Format, source: Source, declared: Declared | None = None
    ) -> Registration:
        self._registrations.check_free(new.id, new.aliases)  # before any network access; the database checks again
        survey = await self._surveyor.survey(new.id, source, format, new.composition)
        now = int(time.time())
        desired = DesiredModel(
            facts=survey.facts,
            aliases=new.aliases,
            source=new.source,
            generation=1,
            manifest=survey.manifest,
            created=now,
            updated=now,
            parts=survey.parts,
            image_defaults=new.image_defaults,
            artifacts=survey.artifacts,
            runtime=new.runtime,
            registered_runtime=new.runtime,
            engine=new.engine,
            keep_loaded=bool(declared and declared.keep_loaded),
        )
        text = declared.text if declared else ""
        registration = await self._registrations.add(desired, survey.fingerprint, text)
        log.info("model registered", extra={"model": new.id, "format": format, "bytes": desired.manifest.size})
        return registration

    async def update(self, name: str, change: Change) -> Registration:
        """Changes a model's source, parts, aliases, defaults, runtime or engine settings.

        A new source must have the model's format; without any field, the present source is surveyed again. A new
        generation begins if files, facts, parts, execution caches, runtime or engine settings have changed, so that the
        old one serves until the new one is ready.

        Raises what `register` raises, and ModelNotFound.
        """
        found = self._registrations.get(name)
        format, roots = found.desired.facts.format, self._settings.roots
        if change.aliases is not None:
            check_aliases(change.aliases, found.id)
            self._registrations.check_aliases_free(found.id, change.aliases)
        if change.image_defaults is not None:
            check_defaults(change.image_defaults, format)
        _check_runtime_change(found, change)
        survey = None
        if change.surveys:
            parsed = parse_source(change.source or found.desired.source, roots)
            before = Composition.of(found.desired.parts)
            loras = before.loras if change.loras is None else change.loras
            composition = Composition(change.base or before.base, loras, kept=not change.base)
            composition.check(format, roots)
            survey = await self._surveyor.survey(found.id, parsed, format, composition)
        changed = await self._registrations.change(found, lambda old: _changed(old, change, survey))
        log.info("model updated", extra={"model": changed.id, "generation": changed.desired.generation})
        return changed


def read_format(text: str) -> Format:
    """Reads a required format. Raises InvalidRequest; `param` is `format`."""
    for format in FORMATS:
        if format == text:
            return format
    allowed = ", ".join(FORMATS)
    if not text:
        raise InvalidRequest(f"Missing required parameter: 'format'. It is one of {allowed}.", param="format")
    raise InvalidRequest(f"unknown format {text!r}: it must be one of {allowed}", param="format")


def _check_runtime_change(found: Registration, change: Change) -> None:
    """Checks that a model can run with the runtime and engine settings of a change. Raises InvalidRequest."""
    if change.runtime is None and change.engine is None:
        return
    was, modality = found.desired, found.desired.facts.modality
    runtime = was.runtime if change.runtime is None else change.runtime
    engine = was.engine if change.engine is None else change.engine
    check_runtime(change.runtime or "", modality)  # the runtime of a LoadModel call may be any that a replica has
    check_engine(engine, was.facts.format, modality)
    check_stages(engine, runtime, was.facts.format)


def _with_declared(registration: Registration, declared: Declared) -> Registration:
    was = registration.desired
    keep_loaded = was.keep_loaded if declared.keep_loaded is None else declared.keep_loaded
    return replace(registration, desired=replace(was, keep_loaded=keep_loaded), declared=declared.text)


def _changed(old: Registration, change: Change, survey: Survey | None) -> Registration:
    was = old.desired
    given = {name: getattr(change, name) for name in ("aliases", "image_defaults", "runtime", "engine")}
    given |= {"source": change.source or None, "registered_runtime": change.runtime}
    desired = replace(was, **{name: value for name, value in given.items() if value is not None})
    fingerprint = old.fingerprint
    if survey:
        fingerprint = survey.fingerprint
        desired = replace(
            desired, facts=survey.facts, manifest=survey.manifest, parts=survey.parts, artifacts=survey.artifacts
        )
    if (*_generation_fields(desired), fingerprint) != (*_generation_fields(was), old.fingerprint):
        desired = replace(desired, generation=was.generation + 1)
    if desired != was:
        desired = replace(desired, updated=int(time.time()))
    return replace(old, desired=desired, fingerprint=fingerprint)


def _generation_fields(desired: DesiredModel) -> tuple[object, ...]:
    """Returns the fields whose change begins a new generation."""
    return desired.facts, desired.manifest, desired.parts, desired.artifacts, desired.runtime, desired.engine
