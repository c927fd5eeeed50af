"""The `allm` command: its subcommands, its help, its exit status."""

from __future__ import annotations

import os
from importlib import metadata
from typing import Annotated

import typer
from rich.console import Console

from services.cli.ending import plainly
from services.cli.keys.app import keys_app
from services.cli.models.app import models_app
from services.cli.serve.gateway import run_gateway
from services.cli.serve.screen import Screen
from services.cli.serve.serve import serve as serve_stack
from services.cli.top import show_on, show_once

app = typer.Typer(
    name="allm",
    help="Serves models on your own machine: OpenAI's REST API and typed, streaming gRPC on one port.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)
app.add_typer(models_app, name="models")
app.add_typer(keys_app, name="keys")


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
def serve() -> None:
    """Start the catalog, the text service and the gateway, and keep them running until Ctrl-C.

    Without further settings it serves a small demo model on http://127.0.0.1:8080/v1. Settings are environment
    variables; the ones most often used:

    * `ALLM_MODELS` - models to register, as `id=/path/to/model.gguf`, comma-separated; see also `allm models add`
    * `ALLM_HOST`, `ALLM_PORT` - where to listen (127.0.0.1, 8080)
    * `ALLM_AUTH` - `keys` asks every caller for an API key; without it only this machine gets in
    * `ALLM_ALLOWED_HOSTS` - names besides localhost under which clients reach it
    * `ALLM_CORS_ORIGINS` - origins whose web pages may call it
    * `ALLM_HOME` - models, logs and state (~/.allm)
    """
    with plainly():
        serve_stack(os.environ, _installed_version(), Screen())


@app.command()
def gateway() -> None:
    """Start the gateway alone, in front of services that run elsewhere, until SIGTERM or Ctrl-C.

    Settings are environment variables; those that say where the services are:

    * `ALLM_GATEWAY_TEXT`, `ALLM_GATEWAY_AUDIO`, `ALLM_GATEWAY_IMAGE` - addresses `host:port`, comma-separated
    * `ALLM_GATEWAY_TEXT_GROUPS`, `ALLM_TEXT_GROUP_MODELS` - further text services, each for a group of models
    * `ALLM_CATALOG` - address of the catalog
    * `ALLM_TLS_CERT`, `ALLM_TLS_KEY` - PEM files, for HTTPS
    """
    with plainly():
        run_gateway(os.environ)


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end; where no terminal is, always.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document for scripts.")] = False,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where allm is; default: the one running here.")
    ] = "",
) -> None:
    """Watch what the machine does: memory, requests, tokens a second, latencies, models that come and go."""
    console = Console(highlight=False)
    if once or as_json or not console.is_terminal:
        show_once(address, as_json)
    else:
        show_on(address, console)
