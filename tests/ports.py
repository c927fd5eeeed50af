"""Free loopback ports for tests."""

from __future__ import annotations

from services.cli.ports import choose_port


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on, nor any connection that goes out will take."""
    return choose_port("127.0.0.1", 0, "")
