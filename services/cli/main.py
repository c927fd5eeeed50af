"""The `allm` command: its subcommands, its help, its exit status."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.auth.identity_keys import PUBLIC_NAME, ROLES, KeysUnusable, create_keys
from services.byte_count import bytes_word
from services.catalog.backup import BackupError, back_up
from services.cli.command import command_group
from services.cli.keys import keys_app
from services.cli.models.app import add, models_app
from services.cli.models.catalog import session
from services.cli.models.options import Address, Json
from services.cli.problem import Problem, plainly
from services.cli.run import Chat, answer, converse, read_picture
from services.cli.serve.gateway import run_gateway
from services.cli.serve.serve import Screen
from services.cli.serve.serve import serve as serve_stack
from services.cli.top import show_on, show_once
from services.settings.settings import load_settings

identity_app = command_group("Create the keys with which the processes of a deployment know each other.")


@identity_app.command("create")
def create_identities(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
) -> None:
    """Create a private key for every role, `ROLE.key`, and one file of their public keys, `public.keys`.

    These are not API keys, which `allm keys` creates. `allm serve` makes its own; a deployment of several containers
    needs them beforehand. To replace keys, create new ones in another folder, see docs/keys.md.
    """
    with plainly():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Problem(f"{folder} must be a new or empty folder: keys in use are never overwritten")
        try:
            create_keys({role: folder / f"{role}.key" for role in ROLES}, folder / PUBLIC_NAME)
        except KeysUnusable as error:
            raise Problem(str(error)) from error
        typer.echo(f"{folder}: {', '.join(f'{role}.key' for role in ROLES)}, {PUBLIC_NAME}")


app = command_group(
    "Serve text, audio and image models on your own machine: OpenAI's REST API and typed gRPC on one port.",
    name="allm",
    epilog="`allm serve` starts it. Then, in another terminal: `allm run smollm2-135m-instruct`",
)
app.add_typer(models_app, name="models")
app.add_typer(keys_app, name="keys")
app.add_typer(identity_app, name="identity")
catalog_app = command_group("Back up the catalog, which holds the registered models and the API keys.")
app.add_typer(catalog_app, name="catalog")


def run() -> None:
    """Runs the command `allm`."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"allm {_installed_version()}")
        raise typer.Exit


def _installed_version() -> str:
    try:
        return metadata.version("allm-server")
    except metadata.PackageNotFoundError:  # running from a source tree
        return "(not installed)"


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command()
def serve(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on. Default: `ALLM_HOST`, or 127.0.0.1.")
    ] = "",
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="The port to listen on; 0: a free one. Default: `ALLM_PORT`, or 8080."),
    ] = None,
) -> None:
    """Start the catalog, the gateway and the text, audio and image services; run them until Ctrl-C.

    By default it serves small demo models on http://127.0.0.1:8080/v1. The audio and image services run if their
    extras are installed. Settings are environment variables; docs/settings.md lists all. The most common ones:

    * `ALLM_MODELS` - models to register, as `id=/path/to/model.gguf`, comma-separated; see also `allm models add`
    * `ALLM_AUDIO_REPLICAS`, `ALLM_IMAGE_REPLICAS` - `0` turns a service off
    * `ALLM_HOST`, `ALLM_PORT` - the address to listen on (127.0.0.1, 8080)
    * `ALLM_AUTH` - `keys` requires an API key of every caller; without it only this machine has access
    * `ALLM_ALLOWED_HOSTS` - host names, besides localhost, that clients may use
    * `ALLM_CORS_ORIGINS` - origins whose web pages may call the API
    * `ALLM_HOME` - the folder for models, logs and state (~/.allm)
    """
    options = {"ALLM_HOST": host, "ALLM_PORT": "" if port is None else str(port)}
    given = {name: value for name, value in options.items() if value}
    with plainly():
        serve_stack(os.environ | given, _installed_version(), Screen())


@app.command("run")
def run_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Id or alias of a text model.")],
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT...", help="The prompt. Default: what comes through a pipe, or a conversation."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="`temperature=0`, `max_tokens=100`, `system=TEXT` and others; repeatable.",
        ),
    ] = None,
    images: Annotated[
        list[Path] | None,
        typer.Option("--image", metavar="PATH", help="A picture for a model that sees; repeatable."),
    ] = None,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Chat with a model in the terminal, or print one answer to a PROMPT or a pipe.

    Examples:

    * `allm run smollm2-135m-instruct` begins a conversation; `/?` shows its commands
    * `allm run smollm2-135m-instruct "What is the capital of France?"`
    * `git diff | allm run MODEL "Describe this change"` puts what comes through the pipe after the prompt
    * `allm run qwen2.5-vl --image drawing.png "What color is the circle?"`

    In a conversation, a path such as `./drawing.png` in a prompt also shows the model that picture.
    For the arrow keys, the prompts of conversations are kept in `ALLM_HOME/history`, which only you can read.
    """
    with session(address) as at:
        chat = Chat(at, model, settings or ())
        words = " ".join(prompt or ())
        piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
        text = "\n\n".join(filter(None, (words, piped)))
        pictures = [read_picture(path) for path in images or ()]
        if text:
            answer(chat, text, pictures, as_json=as_json)
        elif as_json or not sys.stdin.isatty():
            raise Problem("there is no prompt: give one as an argument or through a pipe")
        else:
            converse(chat, at.settings.home, pictures)


app.command(name="pull")(add)


@app.command()
def gateway() -> None:
    """Start only the gateway, in front of services on other machines; run it until SIGTERM or Ctrl-C.

    Settings are environment variables. The addresses of the services:

    * `ALLM_GATEWAY_TEXT`, `ALLM_GATEWAY_AUDIO`, `ALLM_GATEWAY_IMAGE` - `host:port`, comma-separated
    * `ALLM_GATEWAY_TEXT_GROUPS`, `ALLM_TEXT_GROUP_MODELS` - more text services, each for a group of models
    * `ALLM_CATALOG` - address of the catalog
    * `ALLM_TLS_CERT`, `ALLM_TLS_KEY` - PEM files, for HTTPS
    """
    with plainly():
        run_gateway(os.environ)


@app.command()
def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print one sample and exit; implied without a terminal.")
    ] = False,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Show the load of the machine: memory, requests, tokens per second, latencies, model loads and unloads."""
    console = Console(highlight=False)
    if once or as_json or not console.is_terminal:
        show_once(address, as_json)
    else:
        show_on(address, console)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show what this machine can do, what it lacks, and the commands that add it; needs no running server.

    The exit status is 1 if `ALLM_DEVICE` asks for a device that a runtime cannot use.
    """
    from services.cli.doctor import doctor as examine  # noqa: PLC0415 (imports much that other commands do not need)

    with plainly():
        if not examine(load_settings(os.environ), as_json):
            raise typer.Exit(1)


@catalog_app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file for the copy, readable only for you.")],
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Copy the catalog of `ALLM_HOME` to FILE, and check the copy; allm may run meanwhile."""
    with plainly():
        try:
            done = back_up(load_settings(os.environ).home, file, replace=force)
        except BackupError as error:
            raise Problem(str(error)) from error
        found = f"models: {done.models:,}, keys: {done.keys:,}, size: {bytes_word(done.size)}"
        typer.echo(f"{file} is a checked copy of the catalog ({found})")
