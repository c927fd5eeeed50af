"""`allm models`: shows the registered models and their states, and changes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from allm.models.v1 import model_pb2
from allm.models.v1 import model_service_pb2 as pb
from rich.console import Console

from services.byte_count import bytes_word
from services.cli.command import command_group
from services.cli.models import listing
from services.cli.models.bench import Bench, ChatBench, TranscriptionBench
from services.cli.models.catalog import CatalogClient, session
from services.cli.models.check import check as check_files
from services.cli.models.import_folder import Entry, hint, import_folder, summary
from services.cli.models.listing import explain
from services.cli.models.options import (
    Address,
    Alias,
    Base,
    ContextTokens,
    Dtype,
    FoundFormat,
    Guidance,
    Json,
    KvTokens,
    LoadRuntime,
    Loras,
    MaxSequences,
    ModelId,
    Names,
    NewSource,
    PipelineParallel,
    Runtime,
    Speculation,
    Steps,
    TensorParallel,
    Timeout,
    Wait,
    engine_settings,
    image_defaults,
    lora_list,
    short_source,
    source_url,
)
from services.cli.models.page import Page, document, print_document
from services.cli.models.progress import finish, loaded, served
from services.cli.problem import EXIT_PROBLEM, Problem, plainly
from services.cli.verify.app import verify_families, verify_model
from services.models.descriptor import Format, Modality
from services.settings.settings import load_settings

models_app = command_group("Register, list, update, measure and remove models.")


@models_app.command()
def add(
    names: Names,
    format: FoundFormat = None,
    alias: Alias = None,
    modality: Annotated[Modality | None, typer.Option(help="What the model is for. Default: by its format.")] = None,
    base: Base = "",
    loras: Loras = None,
    steps: Steps = None,
    guidance: Guidance = None,
    runtime: Runtime = None,
    tensor_parallel: TensorParallel = None,
    pipeline_parallel: PipelineParallel = None,
    context_tokens: ContextTokens = None,
    max_sequences: MaxSequences = None,
    kv_tokens: KvTokens = None,
    dtype: Dtype = None,
    speculation: Speculation = None,
    wait: Wait = True,
    timeout: Timeout = 0,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Fetch a model from the hub, or take files of this machine; wait until it is verified and ready.

    `allm pull` is `allm models add`. An id or a format that is not given is found and shown first. Examples:

    * `allm pull Qwen/Qwen3-0.6B-GGUF:Q8_0` fetches one quantization of a repository on the hub
    * `allm pull qwen https://huggingface.co/Qwen/Qwen3-0.6B` gives the model the id `qwen`
    * `allm pull ~/.allm/models/mine.gguf` registers a file of this machine
    """
    engine = engine_settings(
        dtype=dtype,
        speculation=speculation,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        context_tokens=context_tokens,
        max_sequences=max_sequences,
        kv_tokens=kv_tokens,
    )
    with session(address) as at:
        found = _found(at.catalog, names, format)
        if not as_json and (found.id, found.source) != (names[0], names[-1]):
            Page(error=wait).say(f"{found.id}: {found.source} ({found.format})")
        request = pb.RegisterModelRequest(
            id=found.id,
            source=found.source,
            format=found.format,
            modality=modality or "",
            aliases=alias,
            base=source_url(base) if base else "",
            loras=lora_list(loras),
            image_defaults=image_defaults(steps, guidance),
            runtime=runtime or "",
            engine=engine,
        )
        model = at.catalog.register(request)
        if not as_json:
            files = f"{bytes_word(model.size_bytes)}, {model.architecture or 'unknown architecture'}"
            Page(error=wait).say(f"{model.id} is registered ({files})")
        finish(at, model, served(model.generation) if wait else None, timeout, as_json)


def _found(catalog: CatalogClient, names: list[str], format: Format | None) -> pb.FindSourceResponse:
    """Returns what to register. Asks the catalog for what is not given. Raises Problem."""
    if len(names) > 2:
        raise Problem(f"{len(names)} arguments are given; there may be two: [ID] SOURCE")
    source = short_source(names[-1])
    if len(names) == 2 and format and "://" in source and not source.startswith("http"):
        return pb.FindSourceResponse(id=names[0], source=source, format=format)
    found = catalog.find_source(source)
    return pb.FindSourceResponse(
        id=names[0] if len(names) == 2 else found.id, source=found.source, format=format or found.format
    )


@models_app.command(name="list")
def list_models(
    all_models: Annotated[bool, typer.Option("--all", help="Models in any state; the default.", hidden=True)] = True,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """List all registered models, each with its state."""
    with session(address) as at:
        reply = at.catalog.models()
        if as_json:
            print_document(document(reply))
        else:
            listing.show_models(Page(), reply.models)
            listing.show_problems(Page(error=True), reply.models_file)


@models_app.command()
def show(
    model_id: ModelId,
    files: Annotated[bool, typer.Option("--files", help="Show all files, not only the first ones.")] = False,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Show everything about a model, such as its replicas, benchmarks and files."""
    with session(address) as at:
        reply = at.catalog.get(model_id)
        if as_json:
            print_document(document(reply))
        else:
            listing.show_model(Page(), reply, all_files=files)


@models_app.command()
def update(
    model_id: ModelId,
    source: NewSource = "",
    alias: Alias = None,
    no_aliases: Annotated[bool, typer.Option("--no-aliases", help="Remove all aliases.")] = False,
    base: Base = "",
    loras: Loras = None,
    no_loras: Annotated[bool, typer.Option("--no-loras", help="Remove all LoRAs.")] = False,
    steps: Steps = None,
    guidance: Guidance = None,
    runtime: Runtime = None,
    tensor_parallel: TensorParallel = None,
    pipeline_parallel: PipelineParallel = None,
    context_tokens: ContextTokens = None,
    max_sequences: MaxSequences = None,
    kv_tokens: KvTokens = None,
    dtype: Dtype = None,
    speculation: Speculation = None,
    wait: Wait = True,
    timeout: Timeout = 0,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Change a model's source, parts, names or settings. The old version serves until the new one is ready."""
    engine = engine_settings(
        dtype=dtype,
        speculation=speculation,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        context_tokens=context_tokens,
        max_sequences=max_sequences,
        kv_tokens=kv_tokens,
    )
    with session(address) as at:
        _check_exclusive(alias, no_aliases, "--alias and --no-aliases")
        _check_exclusive(loras, no_loras, "--lora and --no-loras")
        before = at.catalog.get(model_id).model
        request = pb.UpdateModelRequest(
            id=model_id,
            source=source_url(source) if source else "",
            aliases=pb.AliasList(names=alias) if no_aliases or alias is not None else None,
            base=source_url(base) if base else "",
            loras=pb.LoraList(loras=lora_list(loras)) if loras or no_loras else None,
            image_defaults=image_defaults(steps, guidance),
            runtime=runtime,
            engine=engine,
        )
        model = at.catalog.update(request)
        changed = model.generation != before.generation
        if not as_json:
            what = f"it is now generation {model.generation}" if changed else "its files stay as they are"
            Page(error=wait and changed).say(f"{model.id} is updated: {what}")
        if changed or as_json:
            finish(at, model, served(model.generation) if wait and changed else None, timeout, as_json)


def _check_exclusive(given: list[str] | None, none: bool, options: str) -> None:
    if given and none:
        raise Problem(f"{options} are mutually exclusive")


@models_app.command()
def remove(
    model_id: ModelId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Remove a model and delete the files that allm has fetched for it. Files that you own stay."""
    with session(address) as at:
        model = at.catalog.get(model_id).model
        if not yes:
            _ask(model)
        at.catalog.remove(model.id)
        if as_json:
            print_document({"removed": model.id})
        else:
            Page().say(f"{model.id} is removed")


@models_app.command()
def load(
    model_id: ModelId,
    runtime: LoadRuntime = "",
    wait: Wait = True,
    timeout: Timeout = 0,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Load a model into memory and keep it there, also after restarts."""
    with session(address) as at:
        model = at.catalog.load(model_id, runtime)
        if not (wait or as_json):
            Page().say(f"{model.id} will be loaded")
        finish(at, model, loaded(runtime) if wait else None, timeout, as_json)


@models_app.command()
def unload(model_id: ModelId, as_json: Json = False, address: Address = "") -> None:
    """Unload a model once its running requests have ended. The next request loads it again."""
    with session(address) as at:
        model = at.catalog.unload(model_id)
        if as_json:
            print_document(document(model))
        else:
            Page().say(f"{model.id} will be unloaded")


@models_app.command()
def why(model_id: ModelId, as_json: Json = False, address: Address = "") -> None:
    """Explain which runtime each replica chooses for a model, and why it rejects the others."""
    with session(address) as at:
        explained = at.catalog.explain(model_id)
        if as_json:
            print_document(document(explained))
        else:
            explain(Page(), explained)


@models_app.command()
def bench(
    model_id: ModelId,
    runtime: Annotated[str, typer.Option(metavar="NAME", help="Only this runtime. Default: all that fit.")] = "",
    tokens: Annotated[int, typer.Option(min=2, max=100_000, metavar="N", help="Tokens of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Rounds, after one to warm up.")] = 3,
    prompt_tokens: Annotated[
        int, typer.Option(min=16, max=1_000_000, metavar="N", help="Approximate tokens of the prompt.")
    ] = 128,
    audio: Annotated[
        Path | None, typer.Option("--audio", metavar="FILE", help="A recording of speech, which an audio model needs.")
    ] = None,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Measure a model on each of its runtimes, and record the results: the fastest one is chosen from then on."""
    with session(address) as at:
        chat = ChatBench(at.connection.chat, tokens, prompt_tokens)
        speech = TranscriptionBench(at.connection.audio, audio.expanduser()) if audio else None
        found = Bench(at.catalog, rounds, chat, speech, Page(error=True).say).run(model_id, runtime)
        if as_json:
            print_document({"id": model_id, "benchmarks": [document(each) for each in found]})
        else:
            listing.show_benchmarks(Page(), found)


models_app.command(name="test")(verify_model)
models_app.command(name="verify-families")(verify_families)


@models_app.command()
def check(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="Id or alias of the model. Default: all models.")] = "",
    deep: Annotated[bool, typer.Option("--deep/--quick", help="Compare checksums, or only sizes.")] = True,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Compare the fetched files in `ALLM_MODELS_DIR` with what was registered.

    The exit status is 1 if a file is missing or damaged.
    """
    with session(address) as at:
        named = at.catalog.get(model_id).model.id if model_id else ""
        models = [desired for desired in at.catalog.snapshot() if not named or desired.model.id == named]
        page, reports = Page(), []
        for report in check_files(models, at.settings.model.folder, deep=deep, console=Console(stderr=True)):
            reports.append(report)
            for line in [] if as_json else report.lines():
                page.say(line)
        if as_json:
            print_document({"models": [report.document() for report in reports]})
        elif not reports:
            page.say(listing.NONE_YET)
        if any(report.problems for report in reports):
            raise typer.Exit(EXIT_PROBLEM)


@models_app.command(name="import")
def import_models(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of models, in one of `ALLM_MODEL_ROOTS`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would happen, and register nothing.")] = False,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Register every model in a folder, such as `~/.llm-router/models`; the files stay where they are."""
    page = Page()

    def report(entry: Entry) -> None:
        if not as_json:
            page.say(entry.line())

    folder = folder.expanduser()
    if dry_run:
        with plainly():
            entries = import_folder(folder, load_settings().model.roots, None, report)
    else:
        with session(address) as at:
            entries = import_folder(folder, at.settings.model.roots, at.catalog, report)
    advice = hint(entries, folder)
    if as_json:
        print_document({"models": [entry.document() for entry in entries], "hint": advice})
    else:
        page.say(summary(entries))
        if advice:
            Page(error=True).say(advice)
    outcomes = {entry.outcome for entry in entries}
    if "refused" in outcomes and not outcomes & {"taken", "would take"}:
        raise typer.Exit(EXIT_PROBLEM)


def _ask(model: model_pb2.Model) -> None:
    """Asks for confirmation. Raises Problem without a terminal, Abort if the answer is no."""
    if not sys.stdin.isatty():
        raise Problem(f"{model.id} is not removed: without a terminal, confirm with --yes")
    files = "its files stay where they are" if model.source.startswith("file://") else "its fetched files are deleted"
    typer.confirm(f"Remove {model.id} ({bytes_word(model.size_bytes)}, {files})?", abort=True, err=True)
