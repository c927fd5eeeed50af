"""`python -m services.rpc.probe NAME`: checks this container's service, for container engines without gRPC probes.

NAME is a probe of services/rpc/probes.py: `startup`, `readiness` or `liveness`. The exit status is 0 if the probe
passes, otherwise 1, with the reason on stderr.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.rpc.probes import LIVENESS, READINESS, STARTUP
from services.settings.setting import SettingError
from services.settings.settings import load_settings

NAMES = (STARTUP, READINESS, LIVENESS)
ANSWER_SECONDS = 4.0  # less than the timeout of container engines and kubelets


class NotServing(Exception):
    """The probe failed; the message says why."""


def ask(listen: str, name: str) -> None:
    """Queries the health service at ALLM_HEALTH_LISTEN. Raises NotServing."""
    if not listen:
        raise NotServing("ALLM_HEALTH_LISTEN is not set: the service has no port for probes")
    address = listen.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lack Check
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            raise NotServing(f"{name}: {address} does not answer: {error.details()}") from error
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        raise NotServing(f"{name}: not ready yet, or shutting down")


def main(arguments: list[str]) -> int:
    """Runs the probe and returns the exit status."""
    if len(arguments) != 1 or arguments[0] not in NAMES:
        print(f"usage: python -m services.rpc.probe {'|'.join(NAMES)}", file=sys.stderr)
        return 2
    try:
        ask(load_settings().service.health_listen, arguments[0])
    except (NotServing, SettingError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
