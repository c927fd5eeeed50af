"""Every model as it is now: its registration, and what the live replicas of its service say of it, summed up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from services.catalog.registration.registration import Registration
from services.catalog.registration.registrations import Registrations
from services.catalog.replicas.replica_status import Replica, ReplicaStatus
from services.catalog.replicas.resolution import outlook
from services.models.artifacts import allowed
from services.models.descriptor import Modality
from services.models.desired import Artifact, DesiredModel
from services.models.status import SERVING, STATES, State, Status
from services.settings.settings import ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """One model as it is now."""

    registration: Registration
    desired: DesiredModel  # with its ready replicas, and only the artifacts that may be used
    replicas: tuple[tuple[str, Status], ...]  # what each live one reports, by name
    state: State  # the best of them
    reason: str  # of the replica whose state that is; empty where it serves
    runtime: str

    @property
    def id(self) -> str:
        """What requests name."""
        return self.desired.id

    @property
    def serving(self) -> bool:
        """Whether requests for it are answered somewhere."""
        return self.state in SERVING


class ModelViews:
    """Views of all models. They are made when they are asked for, and kept until something of them changes."""

    def __init__(self, registrations: Registrations, replica_status: ReplicaStatus, settings: ModelSettings) -> None:
        self.version = 0  # grows with every change
        self.on_change: Callable[[Iterable[str]], None] = lambda _: None
        self._registrations = registrations
        self._replica_status = replica_status
        self._settings = settings
        self._views: dict[str, ModelView] = {}

    def get(self, name: str) -> ModelView:
        """The model of that id or alias. Raises ModelNotFound."""
        return self._of(self._registrations.get(name))

    def find(self, model_id: str) -> ModelView | None:
        """The model of that id; None if it is gone."""
        found = self._registrations.find(model_id)
        return self._of(found) if found else None

    def has(self, model_id: str, modality: Modality | None) -> bool:
        """Whether there is a model of that id, and of that modality (None: of any)."""
        found = self._registrations.find(model_id)
        return found is not None and modality in (None, found.desired.facts.modality)

    def all(self) -> list[ModelView]:
        """All models, by id."""
        return [self._of(registration) for registration in self._registrations]

    def changed(self, model_ids: Iterable[str]) -> None:
        """Something about these models is not as it was."""
        ids = list(model_ids)
        if not ids:
            return
        for model_id in ids:
            self._views.pop(model_id, None)
        self.version += 1
        self.on_change(ids)

    def roster_changed(self, modality: Modality) -> None:
        """There are other replicas of a modality, or they offer something else: that concerns each of its models."""
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
        """The artifacts that are allowed now; they may have been registered under another allow-list."""
        if not desired.artifacts or not self._settings.artifacts:
            return ()
        publishers = self._settings.publishers
        return tuple(one for one in desired.artifacts if allowed(one.manifest.repository, publishers))


def _best(live: Sequence[Replica], desired: DesiredModel) -> tuple[State, str, str]:
    """State, reason and runtime of the replica that is furthest with a model."""
    if not live:
        return "unsupported", f"no {desired.facts.modality} service is running", ""
    found: list[tuple[State, str, str]] = []
    for one in live:
        if status := one.statuses.get(desired.id):
            found.append((status.state, "" if status.serving else status.reason, status.runtime))
        else:
            found.append((*outlook(one, desired), ""))
    return min(found, key=lambda each: STATES.index(each[0]))  # the first of the best
