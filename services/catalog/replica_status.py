"""The replicas of all services and the model statuses they report, in memory only: after a restart they report again.

A replica that misses three report intervals is dropped; one that signs off is dropped immediately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from services.catalog import metrics
from services.errors import InvalidRequest, Overloaded
from services.models.descriptor import MODALITIES, Modality
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import RuntimeSpec
from services.models.status import Status
from services.telemetry.figures import Figures

REPORT_WITHIN = 2.0  # seconds
MISSED_REPORTS = 3
MAX_REPLICAS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """A replica's report. Device and runtimes count only in complete reports."""

    replica: str
    modality: Modality
    complete: bool = False
    device: str = ""
    forced: bool = False  # whether an operator chose the device
    runtimes: tuple[RuntimeSpec, ...] = ()
    statuses: Mapping[str, Status] = field(default_factory=dict)  # by model id
    leaving: bool = False
    figures: Figures | None = None  # not used here, but by `Machine`


@dataclass(slots=True, kw_only=True)
class Replica:
    """A live replica."""

    name: str
    modality: Modality
    registry: EngineRegistry
    statuses: dict[str, Status]
    last_report: float  # when it last reported, by `ReplicaStatus`'s clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEffect:
    """The changes that a report made."""

    known: bool  # whether the catalog knows the replica's full state; if not, the replica must send it
    models: frozenset[str] = frozenset()  # ids whose status on that replica has changed
    rosters: frozenset[Modality] = frozenset()  # modalities whose runtimes have changed, for every model


class ReplicaStatus:
    """All live replicas with the status of each model. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._replicas: dict[str, Replica] = {}
        self._live: dict[Modality, tuple[Replica, ...]] = {}  # by name; cached: read once per listed model
        self._sort_by_modality()

    def report(self, report: ReplicaReport, registered: Callable[[str], bool]) -> ReportEffect:
        """Takes in a report; ignores models that are not `registered` for its modality.

        Raises:
            InvalidRequest: a live replica of another modality has this name.
            Overloaded: there are too many replicas.
        """
        replica = self._replicas.get(report.replica)
        if replica and replica.modality != report.modality:
            message = f"the live replica {report.replica!r} serves {replica.modality}, not {report.modality}"
            raise InvalidRequest(message, param="replica")
        if report.leaving:
            self._drop(report.replica)
            return ReportEffect(known=True, rosters=frozenset({replica.modality} if replica else ()))
        if report.complete:
            return self._complete(report, replica, registered)
        if replica is None:
            return ReportEffect(known=False)
        replica.last_report = self._clock()
        fresh = {
            model_id: status
            for model_id, status in report.statuses.items()
            if registered(model_id) and replica.statuses.get(model_id) != status
        }
        replica.statuses |= fresh
        return ReportEffect(known=True, models=frozenset(fresh))

    def expire(self) -> list[Replica]:
        """Drops the replicas that have been silent for too long, and returns them."""
        oldest = self._clock() - REPORT_WITHIN * MISSED_REPORTS
        gone = [replica for replica in self._replicas.values() if replica.last_report < oldest]
        for replica in gone:
            self._drop(replica.name)
        return gone

    def forget(self, model_id: str) -> None:
        """Drops all statuses of a model: a later model with that id is a different one."""
        for replica in self._replicas.values():
            replica.statuses.pop(model_id, None)

    def live(self, modality: Modality) -> tuple[Replica, ...]:
        """Returns the replicas of a modality, by name."""
        return self._live[modality]

    def _complete(self, report: ReplicaReport, old: Replica | None, registered: Callable[[str], bool]) -> ReportEffect:
        if old is None and len(self._replicas) >= MAX_REPLICAS:
            raise Overloaded(f"{MAX_REPLICAS} replicas are known, which is the limit", retry_after=REPORT_WITHIN)
        new = Replica(
            name=report.replica,
            modality=report.modality,
            registry=EngineRegistry(report.device, forced=report.forced, runtimes=report.runtimes),
            statuses={model_id: status for model_id, status in report.statuses.items() if registered(model_id)},
            last_report=self._clock(),
        )
        self._replicas[new.name] = new
        self._sort_by_modality()
        if old is None or _offer(old) != _offer(new):
            return ReportEffect(known=True, rosters=frozenset({new.modality}))
        ids = old.statuses.keys() | new.statuses.keys()
        changed = {model_id for model_id in ids if old.statuses.get(model_id) != new.statuses.get(model_id)}
        return ReportEffect(known=True, models=frozenset(changed))

    def _drop(self, name: str) -> None:
        self._replicas.pop(name, None)
        self._sort_by_modality()

    def _sort_by_modality(self) -> None:
        replicas = [self._replicas[name] for name in sorted(self._replicas)]
        for modality in MODALITIES:
            self._live[modality] = tuple(replica for replica in replicas if replica.modality == modality)
            metrics.REPLICAS.labels(modality).set(len(self._live[modality]))


def _offer(replica: Replica) -> tuple[Modality, str, bool, tuple[RuntimeSpec, ...]]:
    registry = replica.registry
    return replica.modality, registry.device, registry.forced, registry.runtimes
