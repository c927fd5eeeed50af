"""Authentication of `allm models`: a key for the gateway, or its own identity for the catalog."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.models.v1 import model_service_pb2 as pb
from allm.models.v1 import model_service_pb2_grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc

from services.auth.identity import ADMIN, HEADER, verify
from services.cli.models.connection import Connection, command_identity, connect
from services.cli.problem import Problem
from services.rpc.channel import NOBODY
from services.settings.settings import Settings, load_settings
from tests.identities import PUBLIC, write_keys


class Noting(model_service_pb2_grpc.ModelServiceServicer, chat_service_pb2_grpc.ChatServiceServicer):
    """A service that records the metadata of each call."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:  # noqa: N802
        self.shown.append(dict(context.invocation_metadata()))
        return pb.ListModelsResponse()

    def WatchModels(self, request: pb.WatchModelsRequest, context: Any) -> Iterator[pb.WatchModelsResponse]:  # noqa: N802
        self.shown.append(dict(context.invocation_metadata()))
        yield pb.WatchModelsResponse()

    def StreamChatCompletion(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self.shown.append(dict(context.invocation_metadata()))
        yield chat_service_pb2.StreamChatCompletionResponse()


@contextmanager
def standing_in() -> Iterator[tuple[str, Noting]]:
    with futures.ThreadPoolExecutor(2) as pool:
        server, noting = grpc.server(pool), Noting()
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(noting, server)
        chat_service_pb2_grpc.add_ChatServiceServicer_to_server(noting, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}", noting
        finally:
            server.stop(0).wait()


def ask(connection: Connection) -> None:
    connection.models.ListModels(pb.ListModelsRequest())
    list(connection.models.WatchModels(pb.WatchModelsRequest()))
    list(connection.chat.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest()))


def settings(home: Path, **environ: str) -> Settings:
    return load_settings({"ALLM_HOME": str(home), **environ})


def test_without_keys_nothing_is_shown(tmp_path: Path) -> None:
    own = command_identity(settings(tmp_path), "allm-models")
    with standing_in() as (gateway, at_gateway), standing_in() as (catalog, at_catalog):
        with connect(gateway, own, "", catalog) as connection:
            ask(connection)
        assert (len(at_gateway.shown), at_catalog.shown) == (3, [])
        assert not any(HEADER in shown or "authorization" in shown for shown in at_gateway.shown)


def test_command_with_the_operators_key_calls_the_catalog_directly(tmp_path: Path) -> None:
    write_keys(tmp_path)
    own = command_identity(settings(tmp_path), "allm-models")  # without ALLM_AUTH: the file is sufficient
    with standing_in() as (gateway, at_gateway), standing_in() as (catalog, at_catalog):
        with connect(gateway, own, "", catalog) as connection:
            ask(connection)
        assert (len(at_gateway.shown), len(at_catalog.shown)) == (1, 2)
        assert not any(HEADER in shown for shown in at_gateway.shown)
        for shown in at_catalog.shown:
            found = verify(shown[HEADER], PUBLIC, time.time())
            assert (found.subject, found.scopes) == ("service:operator/allm-models", {ADMIN})


def test_gateway_is_used_without_the_catalog(tmp_path: Path) -> None:
    write_keys(tmp_path)
    own = command_identity(settings(tmp_path), "allm-models")
    with standing_in() as (gateway, at_gateway), connect(gateway, own, "", f"unix:{tmp_path}/none") as connection:
        ask(connection)
        assert len(at_gateway.shown) == 3
        assert not any(HEADER in shown for shown in at_gateway.shown)  # any address that `--address` names


def test_a_key_is_shown_to_the_gateway_with_every_call(tmp_path: Path) -> None:
    write_keys(tmp_path)
    given = settings(tmp_path, ALLM_API_KEY="sk-allm-mine")
    assert "sk-allm-mine" not in repr(given)
    own = command_identity(given, "allm-models")
    with standing_in() as (gateway, at_gateway), standing_in() as (catalog, at_catalog):
        with connect(gateway, own, given.auth.api_key, catalog) as connection:
            ask(connection)
        assert [shown["authorization"] for shown in at_gateway.shown] == ["Bearer sk-allm-mine"] * 3
        assert at_catalog.shown == []


def test_a_key_that_is_missing_or_spoiled(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="ALLM_IDENTITY_KEY_FILE"):
        command_identity(settings(tmp_path, ALLM_AUTH="keys"), "allm-models")
    path = write_keys(tmp_path) / "operator.key"
    good = path.read_bytes()
    path.write_text("short")
    assert command_identity(settings(tmp_path), "allm-models") is NOBODY
    with pytest.raises(Problem, match="not an Ed25519 private key"):
        command_identity(settings(tmp_path, ALLM_AUTH="keys"), "allm-models")
    path.write_bytes(good)
    assert command_identity(settings(tmp_path, ALLM_AUTH="keys"), "allm-models").is_known
