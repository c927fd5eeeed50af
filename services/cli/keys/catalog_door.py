"""Connects to the catalog directly, past the gateway; this is how the first key is created."""

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

NAME = "allm-keys"  # the name of this command in the catalog's log


@contextmanager
def key_service(asked: str, settings: Settings) -> Iterator[keys_pb2_grpc.KeyServiceStub]:
    """Connects to the catalog's key service with full rights.

    Raises:
        Problem: `asked` is not an address, or the key that identifies this command cannot be read.
    """
    address = catalog_address(asked, settings)
    with command_identity(settings, NAME).blocking_channel(address, OPTIONS) as channel:
        yield keys_pb2_grpc.KeyServiceStub(channel)


def catalog_address(asked: str, settings: Settings) -> str:
    """Finds the catalog: `asked`, ALLM_CATALOG, the run folder of this home's `allm serve`, or the default port.

    Raises Problem for an invalid address.
    """
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
    """Returns the run folder, or one that does not exist if nothing runs."""
    try:
        return Path(json.loads((home / NOTE_NAME).read_text(encoding="utf-8"))["folder"])
    except (OSError, ValueError, LookupError, TypeError):
        return home / "nothing-runs"
