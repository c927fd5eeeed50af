"""Models for people: the list of all, the details of one, and why a replica uses a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from allm.models.v1 import manifest_pb2, model_pb2, model_service_pb2
from google.protobuf import timestamp_pb2

from services.byte_count import bytes_word
from services.cli.models.options import run_with
from services.cli.models.page import Page, format_word, modality_word, reason_word, state_word
from services.cli.models.progress import of_replica, stage

HEADERS = ("ID", "STATE", "FORMAT", "SIZE", "RUNTIME", "REPLICAS", "ALIASES", "DETAIL")
REPLICA_HEADERS = ("REPLICA", "STATE", "GENERATION", "RUNTIME", "DEVICE", "PEAK MEMORY", "ARTIFACT", "DETAIL")
BENCHMARK_HEADERS = ("RECORDED", "RUNTIME", "DEVICE", "TOKENS/S", "FIRST TOKEN", "PEAK MEMORY")
FILE_HEADERS = ("SIZE", "SHA-256", "FILE")
FIRST_FILES = 20
NONE_YET = "no models yet: `allm pull ORG/NAME` fetches one from the hub"


def show_models(page: Page, models: Sequence[model_pb2.Model]) -> None:
    """Shows all models, one per line."""
    if not models:
        page.say(NONE_YET)
        return
    page.table(HEADERS, [_row(model) for model in models], right=frozenset({"SIZE", "REPLICAS"}))


def show_problems(page: Page, file: model_service_pb2.ModelsFile) -> None:
    """Shows the models file's problems, one per line."""
    for problem in file.problems:
        line = f":{problem.line}" if problem.line else ""
        key = f"{problem.key}: " if problem.key else ""
        page.say(f"{file.path}{line}: {key}{problem.message}")


def show_model(page: Page, reply: model_service_pb2.GetModelResponse, *, all_files: bool) -> None:
    """Shows all details of one model."""
    model = reply.model
    page.pairs(
        [
            ("id", model.id),
            ("aliases", ", ".join(model.aliases)),
            ("state", state_word(model.state)),
            ("reason", model.reason),
            ("modality", modality_word(model.modality)),
            ("format", format_word(model.format)),
            ("architecture", model.architecture),
            ("quantization", model.quantization),
            ("capabilities", ", ".join(model.capabilities)),
            ("runtime", model.runtime),
            ("requested runtime", model.asked_runtime),
            ("engine settings", run_with(model)),
            ("context", f"{model.context_tokens:,} tokens" if model.context_tokens else ""),
            ("size", f"{bytes_word(model.size_bytes)} ({model.size_bytes:,} bytes)"),
            ("source", model.source),
            ("revision", model.revision),
            ("base", model.base),
            ("LoRAs", ", ".join(f"{lora.source} (scale {lora.scale:g})" for lora in model.loras)),
            ("image defaults", _defaults_word(model.image_defaults)),
            ("generation", str(model.generation)),
            ("kept in memory", "yes" if model.keep_loaded else "no"),
            ("registered", time_word(model.create_time)),
            ("changed", time_word(model.update_time)),
        ]
    )
    if model.replicas:
        page.heading("Replicas")
        page.table(REPLICA_HEADERS, [_replica_row(replica) for replica in model.replicas])
    if model.benchmarks:
        page.heading("Benchmarks")
        show_benchmarks(page, model.benchmarks)
    _show_files(page, reply.manifest, all_files)
    for part in reply.parts:
        _show_files(page, part.manifest, all_files)


def show_benchmarks(page: Page, benchmarks: Sequence[model_pb2.Benchmark]) -> None:
    """Shows measurements, one per line."""
    rows = [
        (
            time_word(each.record_time) or "now",
            each.runtime,
            each.device,
            f"{each.tokens_per_second:,.1f}",
            f"{each.first_token_seconds * 1000:,.0f} ms",
            bytes_word(each.peak_memory_bytes) if each.peak_memory_bytes else "not known",
        )
        for each in benchmarks
    ]
    page.table(BENCHMARK_HEADERS, rows, right=frozenset({"TOKENS/S", "FIRST TOKEN", "PEAK MEMORY"}))


def detail(model: model_pb2.Model) -> str:
    """Returns the work in progress, or the reason why the model does not serve; empty if there is neither."""
    for replica in model.replicas:
        if replica.HasField("next"):
            return _coming(replica)
    reached = stage(model, model.generation)
    if state_word(model.state) == "downloading":
        return _share(reached.done, reached.total, reached.reason).lstrip(": ")
    return reason_word(model.reason, model.id)


def canonical_word(files: model_pb2.CanonicalFiles) -> str:
    """Describes the state of a model's own files on a replica that serves an execution cache."""
    state = state_word(files.state)
    if state == "ready":
        return f"complete, {bytes_word(files.total_bytes)}"
    return state + _share(files.done_bytes, files.total_bytes, files.reason)


def time_word(moment: timestamp_pb2.Timestamp) -> str:
    """Formats a moment in this machine's time zone; empty for none."""
    if not moment.seconds:
        return ""
    return datetime.fromtimestamp(moment.seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def _defaults_word(defaults: model_pb2.ImageDefaults) -> str:
    steps = [f"{defaults.steps} steps"] if defaults.HasField("steps") else []
    return ", ".join(steps + ([f"guidance {defaults.guidance:g}"] if defaults.HasField("guidance") else []))


def _row(model: model_pb2.Model) -> tuple[str, ...]:
    serving = sum(of_replica(replica, 0).serving for replica in model.replicas)
    return (
        model.id,
        state_word(model.state),
        format_word(model.format),
        bytes_word(model.size_bytes),
        model.runtime or "-",
        f"{serving}/{len(model.replicas)}",
        ", ".join(model.aliases) or "-",
        detail(model),
    )


def _replica_row(replica: model_pb2.ReplicaStatus) -> tuple[str, ...]:
    note = replica.reason
    if replica.HasField("next"):
        note = _coming(replica)
    elif state_word(replica.state) == "downloading":
        note = _share(replica.done_bytes, replica.total_bytes, replica.reason).lstrip(": ")
    elif replica.memory.loading:
        note = "loading into memory"
    elif replica.HasField("canonical") and not note:
        note = f"own files {canonical_word(replica.canonical)}"
    return (
        replica.replica,
        state_word(replica.state),
        str(replica.generation),
        replica.runtime or "-",
        replica.device or "-",
        bytes_word(replica.peak_memory_bytes) if replica.peak_memory_bytes else "-",
        replica.artifact or "-",
        note,
    )


def _coming(replica: model_pb2.ReplicaStatus) -> str:
    """Describes the generation that a replica prepares next to the serving one."""
    share = _share(replica.done_bytes, replica.total_bytes, replica.next.reason)
    return f"generation {replica.next.generation} {state_word(replica.next.state)}{share}"


def _share(done: int, total: int, reason: str) -> str:
    if reason:
        return f": {reason}"
    return f": {100 * done // total}% of {bytes_word(total)}" if total else ""


def _show_files(page: Page, manifest: manifest_pb2.Manifest, all_files: bool) -> None:
    files = manifest.files
    shown = files if all_files else files[:FIRST_FILES]
    if not files:
        return
    page.heading(f"Files of {manifest.folder or manifest.repository}")
    page.table(
        FILE_HEADERS,
        [(bytes_word(file.size_bytes), file.sha256[:12] or "-", _name(manifest, file.path)) for file in shown],
        right=frozenset({"SIZE"}),
    )
    if len(shown) < len(files):
        page.say(f"and {len(files) - len(shown)} more; --files shows all")


def _name(manifest: manifest_pb2.Manifest, path: str) -> str:
    return f"{path} (opened)" if path == manifest.primary else path


def explain(page: Page, explained: model_service_pb2.ExplainModelResponse) -> None:
    """Prints one paragraph per replica."""
    model = explained.model
    reason = f": {model.reason}" if model.reason else ""
    page.say(f"{model.id} is {state_word(model.state)}{reason}.")
    if not explained.resolutions:
        page.say(f"No service for {modality_word(model.modality)} models is running, so it cannot run now.")
    for resolution in explained.resolutions:
        page.heading(f"{resolution.replica} ({resolution.device})")
        for verdict in resolution.runtimes:
            page.say(_sentence(verdict, resolution.device))
        if not resolution.runtimes:
            page.say("No runtime is installed.")
        elif not any(verdict.chosen for verdict in resolution.runtimes):
            page.say("It uses none of them.")
        for replica in model.replicas:
            if replica.replica == resolution.replica and replica.artifact:
                page.say(_own_files(replica))


def _own_files(replica: model_pb2.ReplicaStatus) -> str:
    if not replica.HasField("canonical"):
        return "It does not keep the model's own files: they are local, or ALLM_KEEP_CANONICAL is off."
    return f"It also keeps the model's own files: {canonical_word(replica.canonical)}."


def _sentence(verdict: model_service_pb2.RuntimeVerdict, device: str) -> str:
    """`device`: the replica's; a runtime that computes on another one says so."""
    if verdict.chosen:
        own = f" on {verdict.device}" if verdict.device not in ("", device) else ""
        return f"It uses {verdict.runtime}{own}: {verdict.reason}."
    if verdict.able:
        return f"It does not use {verdict.runtime}: {verdict.reason}."
    return f"{verdict.runtime} cannot run it: {verdict.reason}."
