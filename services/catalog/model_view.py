"""The current state of every model: its registration, combined with the live replicas' reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from services.catalog.registration.registrations import Registration, Registrations
from services.catalog.replica_status import Replica, ReplicaStatus
from services.catalog.resolution import expected_state
from services.models.artifacts import allowed
from services.models.descriptor import Modality
from services.models.desired import Artifact, DesiredModel
from services.models.status import SERVING, STATES, State, Status
from services.settings.settings import ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """The current state of one model."""

    registration: Registration
    desired: DesiredModel  # with its ready replicas and only the allowed artifacts
    replicas: tuple[tuple[str, Status], ...]  # the status that each live replica reports, by name
    state: State  # the best state among them
    reason: str  # of the replica with that state; empty if it serves
    runtime: str

    @property
    def id(self) -> str:
        """The model's id."""
        return self.desired.id

    @property
    def serving(self) -> bool:
        """True if at least one replica answers requests."""
        return self.state in SERVING


class ModelViews:
    """Views of all models, built on demand and cached until they change."""

    def __init__(self, registrations: Registrations, replica_status: ReplicaStatus, settings: ModelSettings) -> None:
        self.version = 0  # grows with every change
        self.on_change: Callable[[Iterable[str]], None] = lambda _: None
        self._registrations = registrations
        self._replica_status = replica_status
        self._settings = settings
        self._views: dict[str, ModelView] = {}

    def get(self, name: str) -> ModelView:
        """Returns the model with that id or alias. Raises ModelNotFound."""
        return self._of(self._registrations.get(name))

    def find(self, model_id: str) -> ModelView | None:
        """Returns the model with that id; None if it is gone."""
        found = self._registrations.find(model_id)
        return self._of(found) if found else None

    def has(self, model_id: str, modality: Modality | None) -> bool:
        """Reports whether a model with that id and modality (None: any) exists."""
        found = self._registrations.find(model_id)
        return found is not None and modality in (None, found.desired.facts.modality)

    def knows(self, name: str) -> bool:
        """Reports whether a model has this id or alias."""
        return self._registrations.knows(name)

    def all(self) -> list[ModelView]:
        """Returns all models, by id."""
        return [self._of(registration) for registration in self._registrations]

    def changed(self, model_ids: Iterable[str]) -> None:
        """Invalidates the views of these models and notifies `on_change`."""
        ids = list(model_ids)
        if not ids:
            return
        for model_id in ids:
            self._views.pop(model_id, None)
        self.version += 1
        self.on_change(ids)

    def roster_changed(self, modality: Modality) -> None:
        """Invalidates all models of a modality, because its replicas or their offers have changed."""
        self.changed(one.id for one in self._registrations if one.desired.facts.modality == modality)

    def _of(self, registration: Registration) -> ModelView:
        view = self._views.get(registration.id)
        if view is None:
            view = self._views[registration.id] = self._sum_up(registration)
        return view

    def _sum_up(self, registration: Registration) -> ModelView:
        live = self._replica_status.live(registration.desired.facts.modality)
        reported = [(one.name, one.statuses[registration.id]) for one in live if registration.id in one.statuses]
        desired = replace(
            registration.desired,
            artifacts=self._usable(registration.desired),
            ready_replicas=frozenset(name for name, status in reported if status.serving),
        )
        state, reason, runtime = _best(live, desired)
        return ModelView(
            registration=registration,
            desired=desired,
            replicas=tuple(reported),
            state=state,
            reason=reason,
            runtime=runtime,
        )

    def _usable(self, desired: DesiredModel) -> tuple[Artifact, ...]:
        """Returns the artifacts that are allowed now; the allow-list may have changed since registration."""
        if not desired.artifacts or not self._settings.artifacts:
            return ()
        publishers = self._settings.publishers
        return tuple(one for one in desired.artifacts if allowed(one.manifest.repository, publishers))


def _best(live: Sequence[Replica], desired: DesiredModel) -> tuple[State, str, str]:
    """Returns state, reason and runtime of the replica with the best state for a model."""
    if not live:
        return "unsupported", f"no {desired.facts.modality} service is running", ""
    found: list[tuple[State, str, str]] = []
    for one in live:
        if status := one.statuses.get(desired.id):
            found.append((status.state, "" if status.serving else status.reason, status.runtime))
        else:
            found.append((*expected_state(one, desired), ""))
    return min(found, key=lambda each: STATES.index(each[0]))  # the first of the best
