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
from services.cli.models import listing
from services.cli.models.bench import Bench, ChatBench, TranscriptionBench
from services.cli.models.catalog import CatalogClient, session
from services.cli.models.check import check as check_files
from services.cli.models.import_folder import Entry, hint, import_folder, summary
from services.cli.models.listing import explain
from services.cli.models.options import (
    Address,
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
    PipelineParallel,
    Runtime,
    Speculation,
    Steps,
    TensorParallel,
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

models_app = typer.Typer(
    help="Register models, show their state on each replica, and manage them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")]
Timeout = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Longest wait; 0: no limit.")]
Alias = Annotated[
    list[str] | None, typer.Option("--alias", metavar="NAME", help="Another name of the model; repeatable.")
]
Source = "`hf://org/name[@revision][#file]`, or a path or `file://` URL of this machine."


@models_app.command()
def add(
    names: Names,
    format: FoundFormat = None,
    alias: Alias = None,
    modality: Annotated[Modality | None, typer.Option(help="Default: the modality of the format.")] = None,
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
    """Register a model, and wait until it is fetched, verified and ready. `allm pull` is the same command.

    Without an ID or a format they are found from the source and its files, and shown before anything is fetched:

    * `allm pull Qwen/Qwen3-0.6B-GGUF:Q8_0`
    * `allm pull https://huggingface.co/Qwen/Qwen3-0.6B`
    * `allm pull ~/.allm/models/mine.gguf`
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
        raise Problem(f"{len(names)} arguments are given: there may be an ID and must be a SOURCE")
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
    """List all registered models with their states."""
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
    files: Annotated[bool, typer.Option("--files", help="All files, not only the first.")] = False,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Show everything about a model: replicas, benchmarks, files."""
    with session(address) as at:
        reply = at.catalog.get(model_id)
        if as_json:
            print_document(document(reply))
        else:
            listing.show_model(Page(), reply, all_files=files)


@models_app.command()
def update(
    model_id: ModelId,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help=f"{Source} Default: the present source, at the newest commit of its revision."
        ),
    ] = "",
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
    """Remove a model and delete its fetched files. Files of a `file://` source stay."""
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
    runtime: Annotated[str, typer.Option(help="Measure only this runtime; default: all that can run the model.")] = "",
    tokens: Annotated[int, typer.Option(min=2, max=100_000, help="Tokens of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds, after one to warm up.")] = 3,
    prompt_tokens: Annotated[int, typer.Option(min=16, max=1_000_000, help="Approximate tokens of the prompt.")] = 128,
    audio: Annotated[
        Path | None, typer.Option("--audio", metavar="FILE", help="A recording of speech, for an audio model.")
    ] = None,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Measure a model on its runtimes and record the result: from then on the fastest one is chosen."""
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
    model_id: Annotated[str, typer.Argument(metavar="ID", help="Default: all models.")] = "",
    deep: Annotated[bool, typer.Option("--deep/--quick", help="Read every byte, or only compare sizes.")] = True,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Compare the files of models on this machine (`ALLM_MODELS_DIR`) with their manifests."""
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
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of models, below `ALLM_MODEL_ROOTS`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be registered.")] = False,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Register every model in a folder, such as an old `~/.llm-router/models`."""
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
