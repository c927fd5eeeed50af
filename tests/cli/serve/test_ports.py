"""Port checks: free, taken, forbidden, or on an address of another machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from services.cli.problem import Problem
from services.cli.serve.ports import OWN_PORTS, choose_port, default_port
from tests.ports import free_port


def test_a_free_port_is_kept() -> None:
    port = free_port()
    assert choose_port("127.0.0.1", port, "ALLM_PORT") == port
    assert choose_port("localhost", port, "ALLM_PORT") == port


def test_zero_gives_a_free_one() -> None:
    port = choose_port("127.0.0.1", 0, "ALLM_PORT")
    assert port in OWN_PORTS
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_a_default_that_another_instance_has_is_replaced() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert default_port("127.0.0.1", port, "ALLM_METRICS_PORT", {}) in OWN_PORTS
        with pytest.raises(Problem, match="in use"):
            default_port("127.0.0.1", port, "ALLM_METRICS_PORT", {"ALLM_METRICS_PORT": str(port)})


def test_none_is_given_twice() -> None:
    assert len({choose_port("127.0.0.1", 0, "ALLM_PORT") for _ in range(200)}) == 200


def test_free_port_is_used_if_the_default_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as others:
        taken = [others.enter_context(socket.socket()) for _ in range(8)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
            one.listen()
        monkeypatch.setattr("services.cli.serve.ports.OWN_PORTS", [one.getsockname()[1] for one in taken])
        port = choose_port("127.0.0.1", 0, "ALLM_PORT")
        assert port not in [one.getsockname()[1] for one in taken]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_taken_port_is_named_with_its_variable() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(Problem, match=rf"port {port} .*in use.*ALLM_METRICS_PORT"):
            choose_port("127.0.0.1", port, "ALLM_METRICS_PORT")


def test_an_address_of_another_machine() -> None:
    with pytest.raises(Problem, match=r"192\.0\.2\.1 is not an address of this machine.*ALLM_HOST"):
        choose_port("192.0.2.1", 0, "ALLM_PORT")
