"""How the gateway serves the console: from Envoy alone, without affecting any other route."""

from __future__ import annotations

import gzip
import http.client
import json
import re
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from allm.models.v1 import residency_service_pb2, residency_service_pb2_grpc

from gateway import console
from gateway.render import Gateway, render
from services.settings.gateway_settings import GatewaySettings
from tests.stack import Stack

MOST_DOWNLOADED = 300 * 1000  # bytes, compressed
SETTINGS = GatewaySettings("127.0.0.1", 8080, (), (), 1024)


def asked(stack: Stack, method: str, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=30)
    try:
        headers = {"accept": "text/html", **headers}  # others get Ollama's greeting at `/`
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        return reply, reply.read()
    finally:
        connection.close()


def test_every_file_is_served_as_it_is_and_compressed(stack: Stack) -> None:
    files = console.static_files()
    assert {each.path for each in files} >= {"/"}
    for each in files:
        plain, content = asked(stack, "GET", each.path)
        packed, compressed = asked(stack, "GET", each.path, accept_encoding="gzip, deflate, br")
        assert (plain.status, packed.status) == (200, 200)
        assert content == gzip.decompress(compressed) == each.file.read_bytes()
        assert plain.getheader("content-encoding") is None
        assert packed.getheader("content-encoding") == "gzip"
        assert plain.getheader("content-type") == packed.getheader("content-type") == each.type
        assert plain.getheader("vary") == ("accept, accept-encoding" if each.path == "/" else "accept-encoding")
        assert plain.getheader("cache-control") == (console.PAGE_CACHE if each.path == "/" else console.FOREVER)
        assert plain.getheader("x-content-type-options") == "nosniff"


def test_the_policy_lets_nothing_else_in(stack: Stack) -> None:
    reply, _ = asked(stack, "GET", "/")
    policy = dict(part.split(" ", 1) for part in (reply.getheader("content-security-policy") or "").split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert not any("unsafe" in part or "http" in part or "*" in part for part in policy.values())


def test_head_is_answered_without_a_body_and_nothing_else_is(stack: Stack) -> None:
    reply, body = asked(stack, "HEAD", "/")
    assert (reply.status, body) == (200, b"")
    assert int(reply.getheader("content-length") or 0) == len((console.DIST / "index.html").read_bytes())
    for method in ("POST", "PUT", "DELETE"):
        reply, body = asked(stack, method, "/")
        assert reply.status == 404
        assert json.loads(body)["error"]["message"] == f"Invalid URL ({method} /)"


@pytest.mark.parametrize("path", ["/index.html", "/assets/", "/assets/none.js", "/../pyproject.toml", "/v1/none"])
def test_unknown_path_is_an_openai_error(stack: Stack, path: str) -> None:
    reply, body = asked(stack, "GET", path)
    assert reply.status == 404
    assert "error" in json.loads(body)


def test_the_apis_are_where_they_were(stack: Stack) -> None:
    assert asked(stack, "GET", "/healthz")[0].status == 200
    assert json.loads(asked(stack, "GET", "/v1/models", accept="text/html")[1])["object"] == "list"


def test_the_machine_may_be_looked_at_and_nothing_else(stack: Stack) -> None:
    """The console plots it: one RPC of a service that is otherwise closed to clients."""
    with grpc.insecure_channel(stack.grpc_address) as channel:
        residency = residency_service_pb2_grpc.ResidencyServiceStub(channel)
        watch = residency.WatchResidency(residency_service_pb2.WatchResidencyRequest(), timeout=30)
        reported = next(iter(watch)).residency
        watch.cancel()
        assert 0 < reported.host.used_bytes < reported.host.total_bytes
        for refused in (
            lambda: residency.GetResidency(residency_service_pb2.GetResidencyRequest(), timeout=30),
            lambda: residency.Release(residency_service_pb2.ReleaseRequest(model_id="m"), timeout=30),
        ):
            with pytest.raises(grpc.RpcError) as error:
                refused()
            assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_a_page_of_another_origin_gets_nothing(stack: Stack) -> None:
    reply, body = asked(stack, "GET", "/", origin="http://elsewhere.example")
    assert reply.status == 403
    assert b"<html" not in body


def test_the_first_load_is_small() -> None:
    """Formulas and diagrams load on demand: the page's scripts name the files that draw them only in `import()`."""
    files = {each.file.name: each.file.read_text() for each in console.static_files()}
    first = {"index.html"}
    while (
        more := {name for file in first for name in re.findall(r'(?<!import\()"(?:/assets|\.)/([^"]+)"', files[file])}
        - first
    ):
        first |= more
    assert first < files.keys()
    assert 0 < sum(len(gzip.compress(files[name].encode(), 9, mtime=0)) for name in first) < MOST_DOWNLOADED


def test_files_but_the_page_have_a_hash_in_their_names() -> None:
    for each in console.static_files():
        if each.path != "/":
            assert re.search(r"-[A-Z0-9]{8}\.\w+$", each.path)


def rendered(settings: GatewaySettings) -> str:
    gateway = Gateway(settings, ("unix:/t",), "unix:/c", admin="unix:/a", folder=Path("/f"))
    return render(gateway, Path("/f/transcoded.pb"))


def test_it_can_be_switched_off() -> None:
    assert "index.html" in rendered(SETTINGS)
    assert "index.html" not in rendered(replace(SETTINGS, console=False))


def test_no_files_no_console(tmp_path: Path) -> None:
    assert console.static_files(tmp_path) == ()
    assert console.routes((), tmp_path) == []


def test_a_file_too_large_for_envoy_is_refused(tmp_path: Path) -> None:
    (tmp_path / "huge.js").write_bytes(b" " * (console.MOST_BYTES + 1))
    (tmp_path / console.LIST).write_text('[{"path": "/assets/huge.js", "file": "huge.js", "type": "text/javascript"}]')
    with pytest.raises(ValueError, match=r"huge\.js is larger"):
        console.static_files(tmp_path)
