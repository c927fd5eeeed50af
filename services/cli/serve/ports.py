"""Chooses free ports of this machine."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Mapping
from contextlib import suppress

from gateway.address import bind_host
from services.cli.problem import Problem

# Below the ephemeral range: an outgoing connection could take a port between its choice and its use.
OWN_PORTS = range(15_000, 32_000)
_TRIED = 8  # how many of these are tried; then any free one
_STRIPES = 16  # each process uses one stripe, so two that start at the same time rarely choose the same port
_given: set[int] = set()  # chosen earlier, and maybe not yet in use


def choose_port(host: str, port: int, variable: str) -> int:
    """Returns `port` if it can be bound on `host`, or a free port for 0, never the same twice.

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


def default_port(host: str, port: int, variable: str, environ: Mapping[str, str]) -> int:
    """Returns `port` if it is free, and any free one if `environ` does not ask for it: another instance may have it.

    Raises:
        Problem: as `choose_port`.
    """
    try:
        return choose_port(host, port, variable)
    except Problem:
        if environ.get(variable):
            raise
        return choose_port(host, 0, variable)


def _bound(address: str, port: int) -> int:
    """Binds the port (0: any) for a moment, and returns it. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
        bound: int = probe.getsockname()[1]
        return bound


def _sentence(error: OSError, host: str, port: int, variable: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program: stop it, or choose another port with {variable}"
    if error.errno == errno.EACCES:
        return f"port {port} may not be used by this user: choose one above 1023 with {variable}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: correct {variable.replace('PORT', 'HOST')}"
    return f"port {port} on {host} cannot be used ({error.strerror}): choose another with {variable}"
