"""Ports of this machine: whether one is free, or which."""

from __future__ import annotations

import errno
import os
import random
import socket
from contextlib import suppress

from gateway.address import bind_host
from services.cli.problem import Problem

# Below what systems give to connections that go out: one of those may take a port between its choice and its use.
OWN_PORTS = range(15_000, 32_000)
_TRIED = 8  # of these; then any that is free
_STRIPES = 16  # of these a process has one: what two that start at the same moment choose is seldom the same
_given: set[int] = set()  # chosen before, and maybe not yet used


def choose_port(host: str, port: int, variable: str) -> int:
    """`port` itself if it can be bound on `host`, or a free one if it is 0, never the same twice.

    Raises:
        Problem: it cannot be bound; the message names `variable`.
    """
    literal = bind_host(host)
    if port == 0:
        own = [each for each in OWN_PORTS[os.getpid() % _STRIPES :: _STRIPES] if each not in _given]
        for tried in random.sample(own, min(_TRIED, len(own))):
            with suppress(OSError):
                _given.add(_bound(literal, tried))
                return tried
    try:
        return _bound(literal, port)
    except OSError as error:
        raise Problem(_sentence(error, host, port, variable)) from error


def _bound(address: str, port: int) -> int:
    """The port, or any for 0, having been bound for a moment. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
        bound: int = probe.getsockname()[1]
        return bound


def _sentence(error: OSError, host: str, port: int, variable: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken by another program: stop it, or choose another port with {variable}"
    if error.errno == errno.EACCES:
        return f"port {port} may not be used by this user: choose one above 1023 with {variable}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: correct {variable.replace('PORT', 'HOST')}"
    return f"port {port} on {host} cannot be used ({error.strerror}): choose another with {variable}"
