"""`allm models`: what is registered, what becomes of it, and how to change that."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from allm.models.v1 import model_pb2
from rich.console import Console

from services.cli.ending import EXIT_PROBLEM, plainly
from services.cli.keys.catalog_door import catalog_address
from services.cli.models import listing
from services.cli.models.bench import Bench, Plan
from services.cli.models.catalog import Catalog
from services.cli.models.chat_meter import ChatMeter
from services.cli.models.check import check as check_files
from services.cli.models.connection import Connection, command_identity, connect, find_address
from services.cli.models.document import document, documents, print_document
from services.cli.models.explanation import explain
from services.cli.models.image_options import Base, Guidance, Loras, Steps, image_defaults, lora_list
from services.cli.models.import_folder import Entry, hint, import_folder, summary
from services.cli.models.page import Page
from services.cli.models.sources import source_url
from services.cli.models.speech_meter import SpeechMeter
from services.cli.models.stage import Goal, Stage, loaded, served
from services.cli.models.verification.command import verify
from services.cli.models.verification.record import record, write
from services.cli.models.verification.screen import show_outcomes
from services.cli.models.waiting import wait_until
from services.cli.models.words import reason_word
from services.cli.problem import Problem
from services.models.descriptor import Format, Modality
from services.rpc.byte_count import bytes_word
from services.rpc.settings import Settings, load_settings

models_app = typer.Typer(
    help="Register models, see what is ready where, and manage them.", no_args_is_help=True, rich_markup_mode="markdown"
)

ModelId = Annotated[str, typer.Argument(metavar="ID", help="Its id or one of its aliases.")]
Address = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where allm is; default: the one running here.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document for scripts.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Whether to wait until it is done.")]
Timeout = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait at most; 0: no limit.")]
Alias = Annotated[list[str] | None, typer.Option("--alias", metavar="NAME", help="Another name for it; repeatable.")]
Source = "`hf://org/name[@revision][#file]`, or a path or `file://` URL of this machine."


@dataclass(frozen=True, slots=True)
class _Session:
    """What a command works with."""

    connection: Connection
    catalog: Catalog
    settings: Settings


@contextmanager
def _session(address: str) -> Iterator[_Session]:
    """A connection to the running allm, and the settings of this environment."""
    with plainly():
        settings = load_settings()
        where, catalog = find_address(address, settings), "" if address else catalog_address("", settings)
        own = command_identity(settings, "allm-models")
        with connect(where, own, settings.auth.api_key, catalog) as connection:
            yield _Session(connection, Catalog(connection), settings)


@models_app.command()
def add(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="What requests will name.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=Source)],
    format: Annotated[Format, typer.Option(help="What its files are; fixed for good.")],
    alias: Alias = None,
    modality: Annotated[Modality | None, typer.Option(help="Default: what the format is for.")] = None,
    base: Base = "",
    loras: Loras = None,
    steps: Steps = None,
    guidance: Guidance = None,
    wait: Wait = True,
    timeout: Timeout = 0,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Register a model, and wait until it is fetched, verified and ready."""
    with _session(address) as session:
        model = session.catalog.register(
            model_id,
            source_url(source),
            format,
            modality or "",
            alias or [],
            base=source_url(base) if base else "",
            loras=lora_list(loras),
            image_defaults=image_defaults(steps, guidance),
        )
        if not as_json:
            files = f"{bytes_word(model.size_bytes)}, {model.architecture or 'unknown architecture'}"
            Page(error=wait).say(f"{model.id} is registered ({files})")
        _finish(session, model, served(model.generation) if wait else None, timeout, as_json)


@models_app.command(name="list")
def list_models(
    all_models: Annotated[bool, typer.Option("--all", help="Whatever their state; the default.", hidden=True)] = True,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """List all registered models with their states."""
    with _session(address) as session:
        reply = session.catalog.models()
        if as_json:
            print_document(document(reply))
        else:
            listing.show_models(Page(), reply.models)


@models_app.command()
def show(
    model_id: ModelId,
    files: Annotated[bool, typer.Option("--files", help="All files, not only the first.")] = False,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Show everything about a model: replicas, benchmarks, files."""
    with _session(address) as session:
        reply = session.catalog.get(model_id)
        if as_json:
            print_document(document(reply))
        else:
            listing.show_model(Page(), reply, all_files=files)


@models_app.command()
def update(
    model_id: ModelId,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help=f"{Source} Default: the old one, at what its revision names now.")
    ] = "",
    alias: Alias = None,
    no_aliases: Annotated[bool, typer.Option("--no-aliases", help="Take all aliases away.")] = False,
    base: Base = "",
    loras: Loras = None,
    no_loras: Annotated[bool, typer.Option("--no-loras", help="Take all LoRAs away.")] = False,
    steps: Steps = None,
    guidance: Guidance = None,
    wait: Wait = True,
    timeout: Timeout = 0,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Give a model another source, other parts, names or values. The old files serve until new ones are verified."""
    with _session(address) as session:
        for one, none, options in (
            (alias, no_aliases, "--alias and --no-aliases"),
            (loras, no_loras, "--lora and --no-loras"),
        ):
            if one and none:
                raise Problem(f"{options} exclude each other")
        before = session.catalog.get(model_id).model
        model = session.catalog.update(
            model_id,
            source_url(source) if source else "",
            [] if no_aliases else alias,
            base=source_url(base) if base else "",
            loras=lora_list(loras) if loras or no_loras else None,
            image_defaults=image_defaults(steps, guidance),
        )
        changed = model.generation != before.generation
        if not as_json:
            what = f"its files are now generation {model.generation}" if changed else "its files stay as they are"
            Page(error=wait and changed).say(f"{model.id} is updated: {what}")
        if changed or as_json:
            _finish(session, model, served(model.generation) if wait and changed else None, timeout, as_json)


@models_app.command()
def remove(
    model_id: ModelId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Forget a model, and delete what was fetched for it. Files of a `file://` source stay."""
    with _session(address) as session:
        model = session.catalog.get(model_id).model
        if not yes:
            _ask(model)
        session.catalog.remove(model.id)
        if as_json:
            print_document({"removed": model.id})
        else:
            Page().say(f"{model.id} is removed")


@models_app.command()
def load(
    model_id: ModelId,
    runtime: Annotated[str, typer.Option(help="The runtime to load it with; default: the registry's choice.")] = "",
    wait: Wait = True,
    timeout: Timeout = 0,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Load a model into memory and keep it there, also after restarts."""
    with _session(address) as session:
        model = session.catalog.load(model_id, runtime)
        if not (wait or as_json):
            Page().say(f"{model.id} is to be loaded")
        _finish(session, model, loaded(runtime) if wait else None, timeout, as_json)


@models_app.command()
def unload(model_id: ModelId, as_json: Json = False, address: Address = "") -> None:
    """Give a model's memory back once its running requests have ended. The next request loads it again."""
    with _session(address) as session:
        model = session.catalog.unload(model_id)
        if as_json:
            print_document(document(model))
        else:
            Page().say(f"{model.id} is to be unloaded")


@models_app.command()
def why(model_id: ModelId, as_json: Json = False, address: Address = "") -> None:
    """Explain which runtime each replica takes for a model, and why not the others."""
    with _session(address) as session:
        explained = session.catalog.explain(model_id)
        if as_json:
            print_document(document(explained))
        else:
            explain(Page(), explained)


@models_app.command()
def bench(
    model_id: ModelId,
    runtime: Annotated[str, typer.Option(help="Only this runtime; default: every one that can run it.")] = "",
    tokens: Annotated[int, typer.Option(min=2, max=100_000, help="Tokens of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds, beside one that warms up.")] = 3,
    prompt_tokens: Annotated[int, typer.Option(min=16, max=1_000_000, help="Tokens of the prompt, about.")] = 128,
    audio: Annotated[
        Path | None, typer.Option("--audio", metavar="FILE", help="For an audio model: a recording of speech.")
    ] = None,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Measure a model under its runtimes, and record it: from then on the fastest is chosen."""
    with _session(address) as session:
        chat = ChatMeter(session.connection.chat, tokens, prompt_tokens)
        speech = SpeechMeter(session.connection.audio, audio.expanduser()) if audio else None
        found = Bench(session.catalog, Plan(rounds, chat, speech), Page(error=True).say).run(model_id, runtime)
        if as_json:
            print_document({"id": model_id, "benchmarks": documents(found)})
        else:
            listing.show_benchmarks(Page(), found)


@models_app.command(name="test")
def verify_model(
    model_id: ModelId,
    runtime: Annotated[str, typer.Option(help="The runtime to load it with; default: the registry's choice.")] = "",
    check: Annotated[
        list[str] | None, typer.Option("--check", metavar="NAME", help="Only this one, and loading; repeatable.")
    ] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Leave out what says nothing where the weights mean nothing.")
    ] = False,
    prompt_tokens: Annotated[int, typer.Option(min=64, max=1_000_000, help="Tokens of a long prompt, about.")] = 1000,
    record_file: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Write the result there.")
    ] = None,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Check that a text model serves well: its template, its ends, its batches, its tools, and what it finds likely."""
    with _session(address) as session:
        subject, outcomes = verify(
            session.connection,
            model_id,
            Page(error=True).say,
            runtime=runtime,
            names=check or [],
            random=random_weights,
            prompt_tokens=prompt_tokens,
        )
        found = record(subject, outcomes)
        if record_file:
            write(found, record_file)
        if as_json:
            print_document(found)
        else:
            show_outcomes(Page(), subject.model.id, outcomes)
        if not found["passed"]:
            raise typer.Exit(EXIT_PROBLEM)


@models_app.command()
def check(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="Default: all models.")] = "",
    deep: Annotated[bool, typer.Option("--deep/--quick", help="Read every byte, or only compare sizes.")] = True,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Compare the files of models on this machine (`ALLM_MODELS_DIR`) with their manifests."""
    with _session(address) as session:
        named = session.catalog.get(model_id).model.id if model_id else ""
        models = [desired for desired in session.catalog.snapshot() if not named or desired.model.id == named]
        page, reports = Page(), []
        for report in check_files(models, session.settings.model.folder, deep=deep, console=Console(stderr=True)):
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be taken.")] = False,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Register every model that a folder holds, such as an old `~/.llm-router/models`."""
    page = Page()

    def tell(entry: Entry) -> None:
        if not as_json:
            page.say(entry.line())

    folder = folder.expanduser()
    if dry_run:
        with plainly():
            entries = import_folder(folder, load_settings().model.roots, None, tell)
    else:
        with _session(address) as session:
            entries = import_folder(folder, session.settings.model.roots, session.catalog, tell)
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
    """Makes sure that the model is meant. Raises Problem where nobody can be asked, Abort when the answer is no."""
    if not sys.stdin.isatty():
        raise Problem(f"{model.id} is not removed: say --yes where nobody can be asked")
    files = "its files stay where they are" if model.source.startswith("file://") else "what was fetched is deleted"
    typer.confirm(f"Remove {model.id} ({bytes_word(model.size_bytes)}, {files})?", abort=True, err=True)


def _finish(session: _Session, model: model_pb2.Model, goal: Goal | None, timeout: float, as_json: bool) -> None:
    """Waits if there is something to wait for, and prints the outcome."""
    reached: Stage | None = None
    if goal:
        model, reached = wait_until(session.catalog, model, goal, timeout or None)
    if as_json:
        print_document(document(model))
    if reached and not reached.serving:
        reason = reason_word(reached.reason, model.id) or "no reason is known"
        raise Problem(f"{model.id} is {reached.state}: {reason}")
    if reached and not as_json:
        means = " on ".join(part for part in (reached.runtime, reached.device) if part)
        Page().say(f"{model.id} is {reached.state}{f' ({means})' if means else ''}")
