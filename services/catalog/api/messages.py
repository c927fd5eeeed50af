"""Converts model views to protobuf, as far as their caller may see them, and replicas' reports from protobuf."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

from allm.models.v1 import manifest_pb2, model_pb2, model_service_pb2

from services.auth.caller import current_caller
from services.catalog.catalog import Opinion
from services.catalog.model_view import ModelView, ModelViews
from services.catalog.registration.composition import LoraChoice
from services.catalog.registration.declarations import Declarations
from services.catalog.replica_status import ReplicaReport
from services.errors import Internal, InvalidRequest
from services.models import wire
from services.models.descriptor import Modality
from services.models.desired import ModelPart
from services.models.figures_wire import read_figures
from services.models.manifest import Manifest
from services.models.runtimes import DEVICES, RuntimeSpec
from services.models.status import Status

MAX_REPLICA = 128  # characters of a replica's name
MAX_STATUSES = 10_000
MAX_RUNTIMES = 64
MAX_WORDS = 1000  # limit for each of a runtime's architectures, capabilities and devices
MAX_WORD = 128  # characters
MAX_REASON = 1000
LOCAL = "file://"


def required_id(name: str) -> str:
    """Returns the id of a request. Raises InvalidRequest if there is none."""
    if not name:
        raise InvalidRequest("Missing required parameter: 'id'.", param="id")
    return name


def visible(views: ModelViews, name: str) -> ModelView:
    """Returns the model with that id or alias. Raises ModelNotFound and ModelNotAllowed."""
    caller = current_caller()
    with caller.looking_for(name):
        view = views.get(name)
    caller.check_model(name, *view.registration.names)
    return view


def all_visible(views: ModelViews) -> list[ModelView]:
    """Returns all models that the caller may use, by id."""
    identity = current_caller().identity
    return [view for view in views.all() if not identity.models or identity.may_use(*view.registration.names)]


def shown_source(source: str) -> str:
    """Returns a source as the caller may see it: that of a local file is empty without the scope `admin`."""
    return "" if source.startswith(LOCAL) and not current_caller().sees_paths else source


def shown_model(model: model_pb2.Model) -> model_pb2.Model:
    """Returns a model's message as the caller may see it; the given one stays as it is."""
    caller = current_caller()
    if caller.sees_paths:
        return model
    shown = model_pb2.Model()
    shown.CopyFrom(model)
    shown.source, shown.base = shown_source(model.source), shown_source(model.base)
    for lora in shown.loras:
        lora.source = shown_source(lora.source)
    shown.reason = caller.shown(model.reason)
    for replica in shown.replicas:
        replica.reason = caller.shown(replica.reason)
        if replica.HasField("next"):
            replica.next.reason = caller.shown(replica.next.reason)
        if replica.HasField("canonical"):
            replica.canonical.reason = caller.shown(replica.canonical.reason)
    return shown


def shown_manifest(manifest: Manifest) -> manifest_pb2.Manifest:
    """Returns a manifest's message as the caller may see it: without the scope `admin`, without a local folder."""
    return wire.manifest_message(manifest if current_caller().sees_paths else replace(manifest, folder=""))


def shown_part(part: ModelPart) -> manifest_pb2.Part:
    """Returns the message of a part as the caller may see it."""
    message = wire.part_message(replace(part, source=shown_source(part.source)))
    message.manifest.CopyFrom(shown_manifest(part.manifest))
    return message


class ModelMessages:
    """A cache of model messages, one for each view."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[ModelView, model_pb2.Model]] = {}

    def of(self, view: ModelView) -> model_pb2.Model:
        """Returns the complete message of a model. It must not be changed."""
        made = self._made.get(view.id)
        if made is None or made[0] is not view:
            made = self._made[view.id] = (view, model_message(view))
        return made[1]

    def of_all(self, views: list[ModelView]) -> list[model_pb2.Model]:
        """Returns the messages of all models, and drops those of deleted ones."""
        messages = [self.of(view) for view in views]
        if len(self._made) > len(views):
            there = {view.id for view in views}
            self._made = {model_id: made for model_id, made in self._made.items() if model_id in there}
        return messages


def model_message(view: ModelView, *, replicas: bool = True) -> model_pb2.Model:
    """Converts a model; `replicas`: with the status that each replica reports."""
    message = wire.model_message(view.desired)
    message.state = wire.STATES[view.state]
    message.reason = view.reason
    message.runtime = view.runtime
    for benchmark, recorded in zip(message.benchmarks, view.registration.recorded, strict=True):
        benchmark.record_time.seconds = recorded
    if replicas:
        message.replicas.extend(wire.status_message(name, status) for name, status in view.replicas)
    return message


def desired_message(view: ModelView, *, replicas: bool) -> manifest_pb2.DesiredModel:
    """Converts a model for a watcher."""
    return wire.desired_message(view.desired, model_message(view, replicas=replicas))


def resolution_message(opinion: Opinion) -> model_service_pb2.Resolution:
    """Converts one replica's verdicts on its runtimes."""
    return model_service_pb2.Resolution(
        replica=opinion.replica,
        device=opinion.device,
        runtimes=[
            model_service_pb2.RuntimeVerdict(
                runtime=verdict.runtime.name,
                chosen=verdict.chosen,
                able=verdict.able,
                reason=current_caller().shown(verdict.reason),
                device=verdict.runtime.device,
            )
            for verdict in opinion.verdicts
        ],
    )


def models_file(declarations: Declarations) -> model_service_pb2.ModelsFile | None:
    """Returns the models file's unapplied entries; None if there is no models file."""
    if declarations.path is None:
        return None
    problems = [model_service_pb2.ModelsFileProblem(**asdict(problem)) for problem in declarations.problems()]
    return model_service_pb2.ModelsFile(path=str(declarations.path), problems=problems)


def read_modality(value: model_pb2.Modality.ValueType, param: str) -> Modality:
    """Reads a required modality. Raises InvalidRequest."""
    try:
        return wire.word(wire.MODALITIES, value)
    except Internal as error:
        allowed = ", ".join(wire.MODALITIES)
        raise InvalidRequest(f"'{param}' must be one of {allowed}", param=param) from error


def read_loras(loras: Iterable[model_pb2.Lora]) -> tuple[LoraChoice, ...]:
    """Reads the LoRAs that an operator requests."""
    return tuple(LoraChoice(lora.source, lora.scale if lora.HasField("scale") else 1.0) for lora in loras)


def read_report(request: model_service_pb2.ReportModelStatusRequest) -> ReplicaReport:
    """Reads a replica's report. Raises InvalidRequest, also for a report over the limits."""
    name = request.replica
    if not 1 <= len(name) <= MAX_REPLICA or not name.isprintable():
        raise InvalidRequest(f"'replica' must have 1 to {MAX_REPLICA} printable characters", param="replica")
    if len(request.statuses) > MAX_STATUSES:
        raise InvalidRequest(f"'statuses' may have at most {MAX_STATUSES} entries", param="statuses")
    modality = read_modality(request.modality, "modality")
    complete = request.complete and not request.leaving
    if complete:
        _device("device", request.device)
    return ReplicaReport(
        replica=name,
        modality=modality,
        complete=complete,
        device=request.device,
        forced=request.device_forced,
        runtimes=_runtimes(request, modality) if complete else (),
        statuses={one.id: _status(one.status) for one in request.statuses},
        leaving=request.leaving,
        figures=read_figures(request.figures) if request.HasField("figures") else None,
    )


def _runtimes(request: model_service_pb2.ReportModelStatusRequest, modality: Modality) -> tuple[RuntimeSpec, ...]:
    """Merges the offers of each runtime: one offer may cover only some of its capabilities."""
    runtimes: dict[str, RuntimeSpec] = {}
    for offer in request.runtimes:
        (name,) = _words("runtimes", [offer.name])
        architectures = frozenset(_words("runtimes.architectures", offer.architectures))
        known = runtimes.get(name)
        runtime = RuntimeSpec(
            name=name,
            modality=modality,
            # Ignores formats that only a newer service knows: this catalog cannot register them either.
            formats=frozenset(word for word, value in wire.FORMATS.items() if value in offer.formats),
            architectures=dict.fromkeys(_words("runtimes.capabilities", offer.capabilities), architectures),
            devices=frozenset(_words("runtimes.devices", offer.devices)),
            quantizations=frozenset(_words("runtimes.quantizations", offer.quantizations)),
            pipelines=offer.pipelines,
            missing=offer.missing[:MAX_REASON],
            device=_device("runtimes.device", offer.device or request.device),  # an older service sends only its own
            lacking=offer.device_missing[:MAX_REASON],
        )
        if known and (
            known.capabilities & runtime.capabilities or replace(known, architectures=runtime.architectures) != runtime
        ):
            raise InvalidRequest(f"two entries of the runtime {name!r} contradict each other", param="runtimes")
        both = {**known.architectures, **runtime.architectures} if known else runtime.architectures
        runtimes[name] = replace(runtime, architectures=both)
        if len(runtimes) > MAX_RUNTIMES or len(both) > MAX_WORDS:
            raise InvalidRequest(
                f"'runtimes' may have at most {MAX_RUNTIMES} entries, with {MAX_WORDS} architectures each",
                param="runtimes",
            )
    return tuple(runtimes.values())


def _device(param: str, device: str) -> str:
    if device not in DEVICES:
        raise InvalidRequest(f"'{param}' must be one of {', '.join(DEVICES)}", param=param)
    return device


def _words(param: str, words: Iterable[str]) -> list[str]:
    found = list(words)
    if len(found) > MAX_WORDS or not all(1 <= len(word) <= MAX_WORD for word in found):
        limits = f"at most {MAX_WORDS} names of 1 to {MAX_WORD} characters"
        raise InvalidRequest(f"'{param}' may have {limits}", param=param)
    return found


def _status(message: model_pb2.ReplicaStatus) -> Status:
    """Reads the status of one model. It stays in memory, so its texts are cut to a readable length."""
    short = model_pb2.ReplicaStatus()
    short.CopyFrom(message)
    short.reason = message.reason[:MAX_REASON]
    for field in ("runtime", "device"):
        setattr(short, field, getattr(message, field)[:MAX_WORD])
    short.artifact = message.artifact[:MAX_REASON]
    for part in ("next", "canonical"):
        if message.HasField(part):
            getattr(short, part).reason = getattr(message, part).reason[:MAX_REASON]
    try:
        return wire.read_status(short)
    except Internal as error:
        raise InvalidRequest(f"an entry of 'statuses' cannot be read: {error.message}", param="statuses") from error
