"""The catalog: the registered models, their state on each replica, and the operations on them.

It uses registrations, reports and views; `api` converts them to the wire formats.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from services.catalog.hub_fit import HubFit, fit_of
from services.catalog.machine import Machine, Sample
from services.catalog.machine_samples import MachineSamples
from services.catalog.machine_watch import MachineWatchers
from services.catalog.model_view import ModelView, ModelViews
from services.catalog.registration.declarations import Declarations
from services.catalog.registration.hub_choice import find_reference, id_of, parse_reference
from services.catalog.registration.hub_search import HubFinding
from services.catalog.registration.register import Change, NewModel, Registrar
from services.catalog.registration.registrations import Registration, Registrations
from services.catalog.registration.survey import Surveyor
from services.catalog.registration.validation import check_stages
from services.catalog.replica_status import REPORT_WITHIN, ReplicaReport, ReplicaStatus
from services.catalog.resolution import explain
from services.catalog.watches import Watchers
from services.errors import InvalidRequest, ModelExists
from services.models.artifacts import SupportedModels
from services.models.descriptor import Format, Modality, ModelFacts
from services.models.runtime_choice import Measurement, Verdict
from services.settings.settings import ModelSettings

log = logging.getLogger(__name__)

EXPIRY_SECONDS = REPORT_WITHIN / 4  # how often silent replicas are dropped
MAX_SECONDS = 1e9
MAX_RATE = 1e12
MAX_BYTES = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """One replica's verdicts on all its runtimes."""

    replica: str
    device: str
    verdicts: list[Verdict]


class Catalog:
    """The core behind the two wire formats. It needs a running loop; close it."""

    def __init__(
        self,
        registrations: Registrations,
        settings: ModelSettings,
        supported: SupportedModels,
        clock: Callable[[], float] = time.monotonic,
        past: Iterable[Sample] = (),
        samples: MachineSamples | None = None,
    ) -> None:
        """`past` and `samples`: as in MachineWatchers."""
        self._registrations = registrations
        self._replica_status = ReplicaStatus(clock)
        self._surveyor = Surveyor(settings, supported)
        self._registrar = Registrar(registrations, self._surveyor, settings)
        self.views = ModelViews(registrations, self._replica_status, settings)
        self.watchers = Watchers(self.views)
        registrations.on_change = self._registration_changed
        self.views.on_change = self.watchers.notify
        self._machine = Machine(clock)
        self.machine_watchers = MachineWatchers(self._machine, past, samples)
        self.declarations = Declarations(settings.models_file, registrations, self._registrar)
        self._expiry = asyncio.create_task(self._expire_regularly())

    async def register(self, new: NewModel) -> ModelView:
        """Registers a model. Raises what `Registrar.register` raises."""
        return self._view(await self._registrar.register(new))

    async def find_source(self, text: str) -> tuple[str, Format, str]:
        """Returns the source that a text means, its format, and an id for it. Raises what `Surveyor.choose` raises."""
        source, format = await self._surveyor.choose(find_reference(text))
        return source, format, id_of(source)

    async def search_hub(self, words: str, format: Format, limit: int) -> list[tuple[HubFinding, list[HubFit]]]:
        """Returns repositories of the hub, each with its models' outlook. Raises what `Surveyor.search` raises."""

        def fit(facts: ModelFacts) -> HubFit:
            live = self._replica_status.live(facts.modality)
            return fit_of(facts, [(one, self._machine.host_of(one.name)) for one in live])

        found = await self._surveyor.search(words, format, limit)
        return [(finding, [fit(choice.facts) for choice in finding.choices]) for finding in found]

    async def pull(self, name: str) -> ModelView:
        """Registers the model of the hub that a name of the shape `hf.co/org/name:tag` refers to, under this name.

        A model with this name that is registered already stays as it is.

        Raises what `Registrar.register` raises, and InvalidRequest for a name of another shape.
        """
        if not self._registrations.knows(name):
            source, format = await self._surveyor.choose(parse_reference(name))
            with contextlib.suppress(ModelExists):  # a simultaneous request
                return await self.register(NewModel(id=name, source=source, format=format))
        return self.views.get(name)

    async def update(self, name: str, change: Change) -> ModelView:
        """Applies an operator's change to a model.

        Raises what `Registrar.update` raises, and InvalidRequest if the models file declares the model.
        """
        self.declarations.check_by_hand(self._registrations.get(name))
        return self._view(await self._registrar.update(name, change))

    async def delete(self, name: str) -> None:
        """Deletes a model. Raises ModelNotFound, and InvalidRequest if the models file declares it."""
        found = self._registrations.get(name)
        self.declarations.check_by_hand(found)
        await self._registrations.remove(found)
        log.info("model deleted", extra={"model": found.id})

    async def load(self, name: str, runtime: str) -> ModelView:
        """Marks a model to be kept in memory, with `runtime` (empty: its registration's, or else the registry's
        choice).

        Raises:
            ModelNotFound: there is no such model.
            InvalidRequest: no live replica has that runtime, and the message lists the available ones; or that runtime
                cannot run the model as registered.
        """
        found = self._registrations.get(name)
        if runtime:
            self._check_offered(runtime, found.desired.facts.modality)
            check_stages(found.desired.engine, runtime, found.desired.facts.format)

        def change(old: Registration) -> Registration:
            asked = runtime or old.desired.registered_runtime
            return replace(old, desired=replace(old.desired, keep_loaded=True, runtime=asked))

        return self._view(await self._registrations.change(found, change))

    async def unload(self, name: str) -> ModelView:
        """Frees a model's memory and stops keeping it loaded. Raises ModelNotFound."""

        def change(old: Registration) -> Registration:
            return replace(old, desired=replace(old.desired, keep_loaded=False, unloads=old.desired.unloads + 1))

        return self._view(await self._registrations.change(self._registrations.get(name), change))

    async def record(self, name: str, measurement: Measurement) -> None:
        """Stores a measurement. Raises ModelNotFound, InvalidRequest."""
        found = self._registrations.get(name)
        check_measurement(measurement)
        await self._registrations.record(found, measurement)

    def explain(self, name: str) -> tuple[ModelView, list[Opinion]]:
        """Explains how every live replica resolves a model, in order of replica name. Raises ModelNotFound."""
        view = self.views.get(name)
        return view, [
            Opinion(replica=one.name, device=one.registry.device, verdicts=explain(one, view.desired))
            for one in self._replica_status.live(view.desired.facts.modality)
        ]

    def report(self, report: ReplicaReport) -> bool:
        """Takes in a replica's report; returns whether the catalog now knows its full state. Raises Overloaded."""
        effect = self._replica_status.report(report, lambda model_id: self.views.has(model_id, report.modality))
        for modality in effect.rosters:
            self.views.roster_changed(modality)
        self.views.changed(effect.models)
        if report.leaving:
            self._machine.drop(report.replica)
        elif report.figures and effect.known:  # otherwise the number of replicas would be unbounded
            self._machine.take(report.replica, report.modality, report.figures)
        return effect.known

    def expire(self) -> None:
        """Drops the replicas that have fallen silent."""
        gone = self._replica_status.expire()
        for replica in gone:
            log.warning("a replica stopped reporting", extra={"replica": replica.name})
            self._machine.drop(replica.name, lost=True)
        for modality in {replica.modality for replica in gone}:
            self.views.roster_changed(modality)

    def end_watches(self) -> None:
        """Ends all watches, including later ones: they never end by themselves."""
        self.watchers.close()
        self.machine_watchers.end_watches()

    async def close(self) -> None:
        """Ends all watches and waits for pending writes."""
        self.end_watches()
        await self.machine_watchers.close()
        self._expiry.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._expiry
        await self.declarations.close()
        self._surveyor.close()
        await self._registrations.close()

    def _check_offered(self, runtime: str, modality: Modality) -> None:
        """Checks that a live replica has a runtime installed. Raises InvalidRequest."""
        offers = [offer for one in self._replica_status.live(modality) for offer in one.registry.runtimes]
        missing = [offer.missing for offer in offers if offer.name == runtime]
        if missing and all(missing):
            raise InvalidRequest(f"the runtime {runtime!r} cannot run anything now: {missing[0]}", param="runtime")
        if not missing:
            names = {offer.name for offer in offers if not offer.missing}
            there = ", ".join(sorted(names)) or f"none, since no {modality} service is running"
            raise InvalidRequest(f"no live service has the runtime {runtime!r}; available: {there}", param="runtime")

    def _view(self, registration: Registration) -> ModelView:
        return self.views.get(registration.id)

    def _registration_changed(self, model_id: str) -> None:
        if not self.views.has(model_id, None):
            self._replica_status.forget(model_id)
        self.views.changed([model_id])

    async def _expire_regularly(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            try:
                self.expire()
            except Exception:  # a bug in one round must not keep dead replicas forever
                log.exception("unexpected error while silent replicas were dropped")


def check_measurement(measurement: Measurement) -> None:
    """Validates a measurement. Raises InvalidRequest with the parameter at fault."""
    for name, limit in (("runtime", 64), ("device", 16)):
        text = str(getattr(measurement, name))
        if not text or len(text) > limit:
            raise InvalidRequest(f"'benchmark.{name}' must have 1 to {limit} characters", param=f"benchmark.{name}")
    figures = (
        ("tokens_per_second", measurement.tokens_per_second, MAX_RATE),
        ("first_token_seconds", measurement.first_token_seconds, MAX_SECONDS),
    )
    for name, figure, most in figures:
        if not math.isfinite(figure) or not 0 < figure <= most:
            param = f"benchmark.{name}"
            raise InvalidRequest(f"'{param}' must be above 0 and at most {most:g}", param=param)
    if not 0 <= measurement.peak_memory <= MAX_BYTES:
        param = "benchmark.peak_memory_bytes"
        raise InvalidRequest(f"'{param}' must be a number of bytes, 0 if unknown", param=param)
