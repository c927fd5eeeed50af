"""Registering a model, and giving it another source: checked first, then written, then visible."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.catalog.names import check_aliases, check_id
from services.catalog.registration import Registration
from services.catalog.registrations import Registrations
from services.catalog.survey import Survey, Surveyor
from services.models.descriptor import FORMATS, Format, Modality
from services.models.desired import DesiredModel
from services.models.source import parse_source
from services.rpc.errors import InvalidRequest
from services.rpc.settings import ModelSettings

log = logging.getLogger(__name__)

# What each format is for. A format is chosen by an operator and fixed for good; nothing in a folder changes it.
_FOR: dict[Format, Modality] = {"gguf": "text", "safetensors": "text", "whisper": "audio", "diffusers": "image"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModel:
    """What an operator asks to be registered, as it came."""

    id: str
    source: str
    format: str
    modality: str = ""  # empty: what the format is for
    aliases: tuple[str, ...] = ()


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
            ModelInvalid: something is wrong with its files; the message names them.
            ModelNotReady, Overloaded: the hub cannot be asked now.
        """
        check_id(new.id)
        check_aliases(new.aliases, new.id)
        format = _format(new.format)
        if new.modality and new.modality != _FOR[format]:
            raise InvalidRequest(f"{format} is for {_FOR[format]} models, not {new.modality!r}", param="modality")
        source = parse_source(new.source, self._settings.roots)
        self._registrations.check_free(new.id, new.aliases)  # before the network is troubled; the database looks too
        survey = await self._surveyor.survey(new.id, source, format)
        now = int(time.time())
        desired = DesiredModel(
            facts=survey.facts,
            aliases=new.aliases,
            source=new.source,
            generation=1,
            manifest=survey.manifest,
            created=now,
            updated=now,
            artifacts=survey.artifacts,
        )
        registration = await self._registrations.add(desired, survey.fingerprint)
        log.info("model registered", extra={"model": new.id, "format": format, "bytes": desired.manifest.size})
        return registration

    async def update(self, name: str, source: str, aliases: Sequence[str] | None) -> Registration:
        """Gives a model another source of its format, or the same as it is now, or other aliases (None: as they are).

        Without `source` its own is looked at again, unless there are aliases: then only those change. A new generation
        begins where files, facts or execution caches are not what they were.

        Raises what `register` raises, and ModelNotFound.
        """
        found = self._registrations.get(name)
        new_aliases = found.desired.aliases if aliases is None else tuple(aliases)
        check_aliases(new_aliases, found.id)
        self._registrations.check_aliases_free(found.id, new_aliases)
        survey = None
        if source or aliases is None:
            parsed = parse_source(source or found.desired.source, self._settings.roots)
            survey = await self._surveyor.survey(found.id, parsed, found.desired.facts.format)

        def change(old: Registration) -> Registration:
            names = old.desired.aliases if aliases is None else new_aliases
            return _changed(old, source or old.desired.source, names, survey)

        changed = await self._registrations.change(found, change)
        log.info("model updated", extra={"model": changed.id, "generation": changed.desired.generation})
        return changed


def _format(text: str) -> Format:
    for format in FORMATS:
        if format == text:
            return format
    allowed = ", ".join(FORMATS)
    if not text:
        raise InvalidRequest(f"Missing required parameter: 'format'. It is one of {allowed}.", param="format")
    raise InvalidRequest(f"the format {text!r} is not known: it must be one of {allowed}", param="format")


def _changed(old: Registration, source: str, aliases: tuple[str, ...], survey: Survey | None) -> Registration:
    desired = replace(old.desired, source=source, aliases=aliases)
    fingerprint = old.fingerprint
    if survey:
        before = (desired.facts, desired.manifest, desired.artifacts, fingerprint)
        now = (survey.facts, survey.manifest, survey.artifacts, survey.fingerprint)
        if now != before:
            fingerprint = survey.fingerprint
            desired = replace(
                desired,
                facts=survey.facts,
                manifest=survey.manifest,
                artifacts=survey.artifacts,
                generation=desired.generation + 1,
            )
    if desired != old.desired:
        desired = replace(desired, updated=int(time.time()))
    return replace(old, desired=desired, fingerprint=fingerprint)
