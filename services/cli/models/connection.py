"""The way to a running allm: where it is, whether it answers, and its errors as sentences."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from allm.audio.v1 import transcription_service_pb2_grpc
from allm.models.v1 import model_service_pb2_grpc
from allm.openai.v1 import text_service_pb2_grpc
from allm.text.v1 import chat_service_pb2_grpc

from gateway.address import split_host_port, url_host
from services.cli.problem import Problem
from services.cli.run_folder import NOTE_NAME
from services.rpc.settings import Settings

MIB = 1024 * 1024
CONNECT_SECONDS = 5.0
# A model of 20,000 files has a manifest of some MiB. A proxy of the machine is for the internet, not for allm.
OPTIONS = (("grpc.max_receive_message_length", 64 * MIB), ("grpc.enable_http_proxy", 0))
DETAILS = "grpc-status-details-bin"


class Refused(Problem):
    """The catalog's own answer to what was asked: its message as it is."""


class Lost(Problem):
    """Nobody answers at the moment; asking again later may help."""


class Late(Problem):
    """No answer came in time."""


class Connection:
    """A channel to the gateway, with a stub for each service that the commands use."""

    def __init__(self, channel: grpc.Channel, address: str) -> None:
        self.address = address
        self.models = model_service_pb2_grpc.ModelServiceStub(channel)
        self.chat = chat_service_pb2_grpc.ChatServiceStub(channel)
        self.audio = transcription_service_pb2_grpc.TranscriptionServiceStub(channel)
        self.text = text_service_pb2_grpc.TextServiceStub(channel)


def find_address(asked: str, settings: Settings) -> str:
    """Where allm is: as asked, else where the stack of this home says that it runs, else where it would listen.

    Raises:
        Problem: `asked` is no address.
    """
    if asked:
        try:
            asked.startswith("unix:") or split_host_port(asked)
        except ValueError:
            raise Problem(f"--address {asked} is not of the shape host:port") from None
        return asked
    return _noted(settings.home) or f"{url_host(settings.gateway.host)}:{settings.gateway.port}"


@contextmanager
def connect(address: str) -> Iterator[Connection]:
    """A connection that has been tried.

    Raises:
        Problem: nobody answers there.
    """
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        if not _answers(channel):
            raise Problem(
                f"allm does not answer on {address}: start it with `allm serve`, or say where it is with --address"
            )
        yield Connection(channel, address)


@contextmanager
def told() -> Iterator[None]:
    """Turns what gRPC raises inside of it into sentences.

    Raises:
        Refused, Lost, Late: see there.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise _sentence(error) from error


def _sentence(error: grpc.RpcError) -> Problem:
    if not isinstance(error, grpc.Call):
        return Problem(f"the call failed: {error}")
    message = error.details() or error.code().name
    if DETAILS in {key for key, _ in error.trailing_metadata() or ()}:  # an error of allm's own
        return Refused(message)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Late("allm has not answered in time")
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return Lost(f"the service does not answer at the moment ({message}): try again, or see allm's logs")
    return Refused(message)


def _noted(home: Path) -> str:
    """What `run.json` says; empty where there is none, or none that can be read."""
    try:
        address = json.loads((home / NOTE_NAME).read_text(encoding="utf-8"))["grpc"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return address if isinstance(address, str) else ""


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
