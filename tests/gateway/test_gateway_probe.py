"""The gateway probe: its exit status reports health to a container engine."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from gateway import probe
from gateway.probe import NotServing, ask, main
from services.settings.settings import Settings, load_settings
from tests.ports import free_port


@contextmanager
def answering(
    status: int, context: ssl.SSLContext | None = None, answered: tuple[str, ...] = ("/readyz",)
) -> Iterator[int]:
    """Runs a server that returns `status` for the paths; yields its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path in answered else 200 if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def settings(port: int, **more: str) -> Settings:
    return load_settings({"ALLM_HOST": "0.0.0.0", "ALLM_PORT": str(port), **more})  # noqa: S104 (nothing is bound)


def test_ready_means_that_readyz_is_well() -> None:
    with answering(200) as port:
        ask(settings(port), "ready")
        ask(settings(port), "live")


def test_without_the_authorizer_it_lives_and_is_not_ready() -> None:
    with answering(503) as port:
        ask(settings(port), "live")
        with pytest.raises(NotServing, match="/readyz says 503"):
            ask(settings(port), "ready")


def test_it_asks_the_listener_that_no_flood_reaches() -> None:
    """There is nothing at the clients' port."""
    with answering(200) as port:
        for name in ("live", "ready"):
            ask(settings(free_port(), ALLM_GATEWAY_METRICS_PORT=str(port)), name)
    with answering(503, answered=("/livez",)) as port, pytest.raises(NotServing, match="/livez says 503"):
        ask(settings(free_port(), ALLM_GATEWAY_METRICS_PORT=str(port)), "live")


def test_what_accepts_connections_and_does_not_answer_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NotServing, match="timed out"):
        ask(settings(silent.getsockname()[1]), "live")


def test_missing_replica_is_reported() -> None:
    port = free_port()
    for name in ("live", "ready"):
        with pytest.raises(NotServing, match=f"127.0.0.1:{port}: .*refused"):
            ask(settings(port), name)


def test_with_tls_it_asks_by_tls(tmp_path: Path) -> None:
    certificate = trustme.CA().issue_cert("ai.example.org")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    certificate.private_key_pem.write_to_path(tmp_path / "tls.key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    files = {"ALLM_TLS_CERT": str(tmp_path / "tls.crt"), "ALLM_TLS_KEY": str(tmp_path / "tls.key")}
    with answering(200, context) as port:
        ask(settings(port, **files), "ready")
        with pytest.raises(NotServing):
            ask(settings(port), "ready")


def test_the_exit_status_reports_the_result(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([]) == 2
    with answering(200) as port:
        monkeypatch.setenv("ALLM_PORT", str(port))
        assert main(["ready"]) == 0
    capfd.readouterr()
    assert main(["ready"]) == 1
    assert "refused" in capfd.readouterr().err
