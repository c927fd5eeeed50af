"""Converts models to and from protobuf (allm.models.v1), for the messages between the catalog and the services."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from typing import TypeVar, get_args

from allm.models.v1 import manifest_pb2, model_pb2
from google.protobuf import timestamp_pb2

from services.errors import Internal
from services.models.descriptor import AS_THE_SERVICE_DOES, EngineSettings, Format, Modality, ModelFacts
from services.models.desired import Artifact, DesiredModel, ImageDefaults, ModelPart, PartKind
from services.models.manifest import Manifest, ManifestFile
from services.models.runtime_choice import Measurement
from services.models.status import CanonicalStatus, MemoryStatus, NextStatus, State, Status

K = TypeVar("K")
V = TypeVar("V")

MODALITIES: dict[Modality, model_pb2.Modality.ValueType] = {
    name: model_pb2.Modality.Value(f"MODALITY_{name.upper()}") for name in get_args(Modality)
}
FORMATS: dict[Format, model_pb2.Format.ValueType] = {
    name: model_pb2.Format.Value(f"FORMAT_{name.upper()}") for name in get_args(Format)
}
STATES: dict[State, model_pb2.ModelState.ValueType] = {
    name: model_pb2.ModelState.Value(f"MODEL_STATE_{name.upper()}") for name in get_args(State)
}
PART_KINDS: dict[PartKind, manifest_pb2.PartKind.ValueType] = {
    name: manifest_pb2.PartKind.Value(f"PART_KIND_{name.upper()}") for name in get_args(PartKind)
}
# Fields of a status that have the same name and type in the message.
_STATUS = ("reason", "generation", "runtime", "device", "artifact", "done_bytes", "total_bytes")


def word(table: dict[K, V], value: V) -> K:
    """Returns the name of an enum's value. Raises Internal if this version does not know it."""
    for key, known in table.items():
        if known == value:
            return key
    raise Internal(f"the value {value} is unknown: another version of allm wrote it")


def manifest_message(manifest: Manifest) -> manifest_pb2.Manifest:
    """Encodes a manifest."""
    return manifest_pb2.Manifest(
        repository=manifest.repository,
        revision=manifest.revision,
        folder=manifest.folder,
        primary=manifest.primary,
        files=[
            manifest_pb2.ManifestFile(path=file.path, size_bytes=file.size, sha256=file.sha256)
            for file in manifest.files
        ],
    )


def read_manifest(message: manifest_pb2.Manifest) -> Manifest:
    """Decodes a manifest and checks it, because its paths are opened. Raises ModelInvalid."""
    manifest = Manifest(
        repository=message.repository,
        revision=message.revision,
        folder=message.folder,
        primary=message.primary,
        files=tuple(ManifestFile(path=file.path, size=file.size_bytes, sha256=file.sha256) for file in message.files),
    )
    manifest.check()
    return manifest


def model_message(desired: DesiredModel) -> model_pb2.Model:
    """Encodes a model without its replicas' reports: the caller fills in state, reason, runtime and replicas."""
    facts = desired.facts
    message = model_pb2.Model(
        id=facts.id,
        aliases=desired.aliases,
        modality=MODALITIES[facts.modality],
        format=FORMATS[facts.format],
        architecture=facts.architecture,
        capabilities=sorted(facts.capabilities),
        size_bytes=facts.size,
        context_tokens=facts.context_tokens,
        quantization=facts.quantization,
        unpacked_bytes=facts.unpacked_size,
        create_time=timestamp_pb2.Timestamp(seconds=desired.created),
        update_time=timestamp_pb2.Timestamp(seconds=desired.updated),
        source=desired.source,
        revision=desired.manifest.revision,
        generation=desired.generation,
        keep_loaded=desired.keep_loaded,
        benchmarks=map(measurement_message, desired.measured),
        asked_runtime=desired.runtime,
    )
    for part in desired.parts:
        if part.kind == "base":
            message.base = part.source or f"hf://{part.manifest.repository}"
        else:
            message.loras.add(source=part.source, scale=part.scale, revision=part.manifest.revision)
    if desired.image_defaults != ImageDefaults():
        message.image_defaults.CopyFrom(model_pb2.ImageDefaults(**asdict(desired.image_defaults)))
    if desired.engine != AS_THE_SERVICE_DOES:
        message.engine.CopyFrom(model_pb2.EngineSettings(**asdict(desired.engine)))
    return message


def part_message(part: ModelPart) -> manifest_pb2.Part:
    """Encodes a part of a model."""
    return manifest_pb2.Part(
        kind=PART_KINDS[part.kind], source=part.source, manifest=manifest_message(part.manifest), scale=part.scale
    )


def read_image_defaults(message: model_pb2.ImageDefaults) -> ImageDefaults:
    """Decodes the defaults of an image model."""
    return ImageDefaults(
        steps=message.steps if message.HasField("steps") else None,
        guidance=message.guidance if message.HasField("guidance") else None,
    )


def read_engine(message: model_pb2.EngineSettings) -> EngineSettings:
    """Decodes engine settings."""
    return EngineSettings(**{field.name: getattr(message, field.name) for field in fields(EngineSettings)})


def desired_message(desired: DesiredModel, model: model_pb2.Model) -> manifest_pb2.DesiredModel:
    """Encodes a desired model; `model` is its completed `model_message`."""
    return manifest_pb2.DesiredModel(
        model=model,
        manifest=manifest_message(desired.manifest),
        parts=map(part_message, desired.parts),
        artifacts=map(_artifact_message, desired.artifacts),
        runtime=desired.runtime,
        unloads=desired.unloads,
        ready_replicas=sorted(desired.ready_replicas),
    )


def read_desired(message: manifest_pb2.DesiredModel) -> DesiredModel:
    """Decodes a desired model. Raises ModelInvalid, Internal."""
    model = message.model
    facts = ModelFacts(
        id=model.id,
        modality=word(MODALITIES, model.modality),
        format=word(FORMATS, model.format),
        architecture=model.architecture,
        capabilities=frozenset(model.capabilities),
        size=model.size_bytes,
        context_tokens=model.context_tokens,
        quantization=model.quantization,
        unpacked_size=model.unpacked_bytes,
    )
    return DesiredModel(
        facts=facts,
        aliases=tuple(model.aliases),
        source=model.source,
        generation=model.generation,
        manifest=read_manifest(message.manifest),
        created=model.create_time.seconds,
        updated=model.update_time.seconds,
        parts=tuple(map(_read_part, message.parts)),
        image_defaults=read_image_defaults(model.image_defaults),
        engine=read_engine(model.engine),
        artifacts=tuple(_read_artifact(facts, artifact) for artifact in message.artifacts),
        measured=read_measurements(model.benchmarks),
        keep_loaded=model.keep_loaded,
        runtime=message.runtime,
        unloads=message.unloads,
        ready_replicas=frozenset(message.ready_replicas),
    )


def status_message(replica: str, status: Status) -> model_pb2.ReplicaStatus:
    """Encodes a replica's status of a model."""
    message = model_pb2.ReplicaStatus(
        replica=replica,
        state=STATES[status.state],
        peak_memory_bytes=status.peak_memory,
        **{name: getattr(status, name) for name in _STATUS},
    )
    if status.next:
        message.next.generation = status.next.generation
        message.next.state = STATES[status.next.state]
        message.next.reason = status.next.reason
    if status.memory:
        message.memory.CopyFrom(_memory_message(status.memory))
    if own := status.canonical:
        message.canonical.state = STATES[own.state]
        message.canonical.reason = own.reason
        message.canonical.done_bytes, message.canonical.total_bytes = own.done_bytes, own.total_bytes
    return message


def read_status(message: model_pb2.ReplicaStatus) -> Status:
    """Decodes a replica's status of a model. Raises Internal."""
    following = None
    if message.HasField("next"):
        following = NextStatus(
            generation=message.next.generation,
            state=word(STATES, message.next.state),
            reason=message.next.reason,
        )
    canonical = None
    if message.HasField("canonical"):
        canonical = CanonicalStatus(
            state=word(STATES, message.canonical.state),
            reason=message.canonical.reason,
            done_bytes=message.canonical.done_bytes,
            total_bytes=message.canonical.total_bytes,
        )
    return Status(
        state=word(STATES, message.state),
        **{name: getattr(message, name) for name in _STATUS},
        peak_memory=message.peak_memory_bytes,
        next=following,
        memory=_read_memory(message.memory) if message.HasField("memory") else None,
        canonical=canonical,
    )


def measurement_message(measured: Measurement) -> model_pb2.Benchmark:
    """Encodes a measurement, without the time of its recording."""
    return model_pb2.Benchmark(
        runtime=measured.runtime,
        device=measured.device,
        tokens_per_second=measured.tokens_per_second,
        first_token_seconds=measured.first_token_seconds,
        peak_memory_bytes=measured.peak_memory,
    )


def read_measurements(messages: Iterable[model_pb2.Benchmark]) -> tuple[Measurement, ...]:
    """Decodes measurements."""
    return tuple(
        Measurement(
            runtime=message.runtime,
            device=message.device,
            tokens_per_second=message.tokens_per_second,
            first_token_seconds=message.first_token_seconds,
            peak_memory=message.peak_memory_bytes,
        )
        for message in messages
    )


def _read_part(message: manifest_pb2.Part) -> ModelPart:
    return ModelPart(
        kind=word(PART_KINDS, message.kind),
        source=message.source,
        manifest=read_manifest(message.manifest),
        scale=message.scale,
    )


def _artifact_message(artifact: Artifact) -> manifest_pb2.Artifact:
    return manifest_pb2.Artifact(
        runtime=artifact.runtime,
        devices=sorted(artifact.devices),
        format=FORMATS[artifact.facts.format],
        architecture=artifact.facts.architecture,
        manifest=manifest_message(artifact.manifest),
        quantization=artifact.facts.quantization,
        unpacked_bytes=artifact.facts.unpacked_size,
    )


def _read_artifact(owner: ModelFacts, message: manifest_pb2.Artifact) -> Artifact:
    manifest = read_manifest(message.manifest)
    facts = replace(
        owner,
        format=word(FORMATS, message.format),
        architecture=message.architecture,
        size=manifest.size,
        quantization=message.quantization,
        unpacked_size=message.unpacked_bytes,
    )
    return Artifact(runtime=message.runtime, devices=frozenset(message.devices), facts=facts, manifest=manifest)


def _memory_message(memory: MemoryStatus) -> model_pb2.MemoryStatus:
    return model_pb2.MemoryStatus(
        loading=memory.loading,
        pinned=memory.pinned,
        reserved_bytes=memory.reserved,
        host_bytes=memory.host,
        requests=memory.requests,
        last_use_time=timestamp_pb2.Timestamp(seconds=memory.last_used),
        expire_time=timestamp_pb2.Timestamp(seconds=memory.expires) if memory.expires else None,
    )


def _read_memory(message: model_pb2.MemoryStatus) -> MemoryStatus:
    return MemoryStatus(
        loading=message.loading,
        pinned=message.pinned,
        reserved=message.reserved_bytes,
        host=message.host_bytes,
        requests=message.requests,
        last_used=message.last_use_time.seconds,
        expires=message.expire_time.seconds,
    )
