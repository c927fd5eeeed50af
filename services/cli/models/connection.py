"""Connects to a running allm: finds its address, tests it, and turns errors into sentences.

`allm keys` connects to the catalog directly, past the gateway: that is how the first key is created.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
from allm.audio.v1 import transcription_service_pb2_grpc
from allm.keys.v1 import keys_pb2_grpc
from allm.models.v1 import machine_service_pb2_grpc, model_service_pb2_grpc
from allm.openai.v1 import text_service_pb2_grpc
from allm.text.v1 import chat_service_pb2_grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from gateway.address import split_host_port, url_host
from services.auth.identity_keys import OPERATOR, KeysUnusable, read_key
from services.cli.problem import Problem
from services.cli.serve.run_folder import NOTE_NAME
from services.cli.serve.stack import CATALOG
from services.rpc.channel import NOBODY, MetadataInterceptor, OwnIdentity
from services.settings.settings import DEFAULT_CATALOG, Settings

MIB = 1024 * 1024
CONNECT_SECONDS = 5.0
# A model of 20,000 files has a manifest of some MiB. A configured HTTP proxy is for the internet, not for allm.
OPTIONS = (("grpc.max_receive_message_length", 64 * MIB), ("grpc.enable_http_proxy", 0))
HTTPS = "https://"
DETAILS = "grpc-status-details-bin"
KEYS_COMMAND = "allm-keys"  # its name in the catalog's log
# What a user of the commands can do about an error of the catalog or a service, by its reason (services/errors.py).
REMEDIES = {
    "MODEL_NOT_FOUND": "`allm models list` shows the models, `allm pull` adds one",
    "UNAUTHENTICATED": "set ALLM_API_KEY to a key that `allm keys create` has made",
}


class CallRefused(Problem):
    """An error from the catalog or a service, with its message, and for some reasons with a remedy."""


class Lost(Problem):
    """Nothing answers at the moment; a retry may help."""


class Late(Problem):
    """No answer arrived in time."""


class Connection:
    """A channel to the gateway, with a stub for each service that the commands use; `catalog`: a direct channel."""

    def __init__(self, channel: grpc.Channel, address: str, catalog: grpc.Channel | None = None) -> None:
        self.address = address
        self.models = model_service_pb2_grpc.ModelServiceStub(catalog or channel)
        self.machine = machine_service_pb2_grpc.MachineServiceStub(catalog or channel)
        self.chat = chat_service_pb2_grpc.ChatServiceStub(channel)
        self.audio = transcription_service_pb2_grpc.TranscriptionServiceStub(channel)
        self.text = text_service_pb2_grpc.TextServiceStub(channel)


def find_address(asked: str, settings: Settings, note: Mapping[str, Any]) -> str:
    """Finds allm's address: `asked`, else the one in this home's `run.json`, `note`, else the configured one.

    Raises:
        Problem: `asked` is not an address.
    """
    if asked:
        try:
            asked.startswith("unix:") or split_host_port(asked.removeprefix(HTTPS))
        except ValueError:
            raise Problem(f"--address {asked} must be host:port or https://host:port") from None
        return asked
    return _noted(note) or f"{url_host(settings.gateway.host)}:{settings.gateway.port}"


def warning(asked: str, settings: Settings, note: Mapping[str, Any]) -> str:
    """Returns a sentence if nothing tells that the server of `find_address` is the one that is meant; else nothing."""
    if asked or _noted(note) or settings.model.catalog != DEFAULT_CATALOG:
        return ""
    return (
        f"No `allm serve` runs with {settings.home} (ALLM_HOME): this is the one on {find_address('', settings, note)}"
    )


def _noted(note: Mapping[str, Any]) -> str:
    """Returns the address in a run note, or nothing."""
    noted = note.get("local") or note.get("grpc")
    return noted if isinstance(noted, str) else ""


@contextmanager
def connect(address: str, own: OwnIdentity = NOBODY, key: str = "", catalog: str = "") -> Iterator[Connection]:
    """Opens a connection and tests it.

    With a `key`, all calls go through the gateway, with that key. Without one, catalog calls go directly to `catalog`
    if it answers there, authenticated by `own`. The gateway is not shown it: its reader is an operator for a minute.

    Raises:
        Problem: nothing answers at the address.
    """
    with ExitStack() as stack:
        channel = stack.enter_context(_channel(address))
        if not _answers(channel):
            raise Problem(
                f"allm does not answer on {address}: start it with `allm serve`, or give its address with --address"
            )
        if key:
            yield Connection(grpc.intercept_channel(channel, MetadataInterceptor(lambda: _bearer(key))), address)
            return
        itself = stack.enter_context(own.blocking_channel(catalog, OPTIONS)) if catalog and own.is_known else None
        yield Connection(channel, address, itself if itself and _answers(itself) else None)


def command_identity(settings: Settings, name: str) -> OwnIdentity:
    """Returns a command's identity, with the operator's key if there is one: users need not repeat ALLM_AUTH.

    Raises:
        Problem: the key cannot be read, and ALLM_AUTH requires it.
    """
    path = settings.auth.key_file_of(OPERATOR)
    try:
        key = read_key(path) if settings.auth.keys or path.exists() else None
    except (KeysUnusable, OSError) as error:
        if not settings.auth.keys:  # perhaps another user's: commands that need no keys still work
            return NOBODY
        raise Problem(f"{error}; `allm serve` creates it if ALLM_AUTH=keys") from error
    return OwnIdentity(key, OPERATOR, name, tls=settings.tls.service)


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turns gRPC errors in the block into sentences.

    Raises:
        CallRefused, Lost, Late: see these classes.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise _sentence(error) from error


def _sentence(error: grpc.RpcError) -> Problem:
    if not isinstance(error, grpc.Call):
        return Problem(f"the call failed: {error}")
    message = error.details() or error.code().name
    details = dict(error.trailing_metadata() or ()).get(DETAILS)
    if isinstance(details, bytes):  # an error from allm itself
        remedy = REMEDIES.get(_reason(details))
        return CallRefused(f"{message.rstrip('.')}; {remedy}" if remedy else message)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Late("allm did not answer in time")
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return Lost(f"the service does not answer at the moment ({message}): try again, or see allm's logs")
    return CallRefused(message)


def _reason(details: bytes) -> str:
    """Returns the reason in the details of an error; empty if they are not allm's."""
    info = error_details_pb2.ErrorInfo()
    try:
        found = status_pb2.Status.FromString(details).details
    except DecodeError:
        return ""
    return info.reason if found and found[0].Unpack(info) else ""


def by_model(model_id: str) -> tuple[tuple[str, str], ...]:
    """Returns metadata by which a gateway with groups finds a model's group."""
    return (("x-model", model_id),)


def _channel(address: str) -> grpc.Channel:
    if address.startswith(HTTPS):  # GRPC_DEFAULT_SSL_ROOTS_FILE_PATH overrides gRPC's bundled authorities
        return grpc.secure_channel(address.removeprefix(HTTPS), grpc.ssl_channel_credentials(), options=OPTIONS)
    # The gateway requires a host name, which a socket path does not have.
    named = (("grpc.default_authority", "localhost"),) if address.startswith("unix:") else ()
    return grpc.insecure_channel(address, options=(*OPTIONS, *named))


def _bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def _answers(channel: grpc.Channel) -> bool:
    states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
    channel.subscribe(states.put, try_to_connect=True)
    try:
        while True:
            state = states.get(timeout=CONNECT_SECONDS)
            if state is grpc.ChannelConnectivity.READY:
                return True
            if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                return False
    except queue.Empty:
        return False
    finally:
        channel.unsubscribe(states.put)


@contextmanager
def key_service(asked: str, settings: Settings) -> Iterator[keys_pb2_grpc.KeyServiceStub]:
    """Connects to the catalog's key service with full rights.

    Raises:
        Problem: `asked` is not an address, the key that identifies this command cannot be read, or nothing answers.
    """
    address = catalog_address(asked, settings, read_note(settings.home))
    with command_identity(settings, KEYS_COMMAND).blocking_channel(address, OPTIONS) as channel:
        if not _answers(channel):
            where = f"{address}, as the catalog of ALLM_HOME={settings.home}"
            raise Problem(f"allm does not answer on {where}: start it with `allm serve`, or give --catalog")
        yield keys_pb2_grpc.KeyServiceStub(channel)


def catalog_address(asked: str, settings: Settings, note: Mapping[str, Any]) -> str:
    """Finds the catalog: `asked`, ALLM_CATALOG, the run folder in this home's `run.json`, `note`, or the default port.

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
    folder = note.get("folder")
    if isinstance(folder, str) and (socket := Path(folder) / f"{CATALOG}.sock").exists():
        return f"unix:{socket}"
    return settings.model.catalog


def read_note(home: Path) -> dict[str, Any]:
    """Returns the content of `run.json`, which `allm serve` writes; empty if the file is missing or unreadable."""
    try:
        note = json.loads((home / NOTE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}
