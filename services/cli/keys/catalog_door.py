"""The way to the catalog itself, past the gateway: this is how the first key comes to be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allm.keys.v1 import keys_pb2_grpc

from gateway.address import split_host_port
from services.cli.models.connection import OPTIONS, command_identity
from services.cli.problem import Problem
from services.cli.serve.run_folder import NOTE_NAME
from services.cli.serve.stack import CATALOG
from services.settings.settings import DEFAULT_CATALOG, Settings

NAME = "allm-keys"  # what the catalog's log calls this command


@contextmanager
def key_service(asked: str, settings: Settings) -> Iterator[keys_pb2_grpc.KeyServiceStub]:
    """A client of the catalog's keys that may do everything.

    Raises:
        Problem: `asked` is no address, or the secret by which this command shows who it is cannot be read.
    """
    address = catalog_address(asked, settings)
    with command_identity(settings, NAME).blocking_channel(address, OPTIONS) as channel:
        yield keys_pb2_grpc.KeyServiceStub(channel)


def catalog_address(asked: str, settings: Settings) -> str:
    """Where the catalog is: as asked, else as ALLM_CATALOG says, else in the run folder of the `allm serve` of this
    home, else at the usual port. Raises Problem for what is no address."""
    if asked:
        try:
            asked.startswith("unix:") or split_host_port(asked)
        except ValueError:
            raise Problem(f"--catalog {asked} is neither host:port nor unix:/path") from None
        return asked
    if settings.model.catalog != DEFAULT_CATALOG:
        return settings.model.catalog
    socket = _noted_folder(settings.home) / f"{CATALOG}.sock"
    return f"unix:{socket}" if socket.exists() else settings.model.catalog


def _noted_folder(home: Path) -> Path:
    """The run folder; one that does not exist where nothing runs."""
    try:
        return Path(json.loads((home / NOTE_NAME).read_text(encoding="utf-8"))["folder"])
    except (OSError, ValueError, LookupError, TypeError):
        return home / "nothing-runs"
