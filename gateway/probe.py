"""`python -m gateway.probe live|ready`: probes the gateway of this container over its own loopback.

For container engines without probes of their own. `live`: /livez returns 200, so Envoy works. `ready`: /readyz returns
200, so requests are admitted. It asks the listener for metrics and probes, which no flood of clients reaches, and
without that listener (ALLM_GATEWAY_METRICS_PORT) the clients' listener, which has the same paths. The
exit status is 0 on success, else 1 with the reason in a sentence.
"""

from __future__ import annotations

import http.client
import ssl
import sys

from gateway.address import url_host
from gateway.stats import LIVE, READY
from services.settings.setting import SettingError
from services.settings.settings import Settings, load_settings

PATHS = {"live": LIVE, "ready": READY}
ANSWER_SECONDS = 5.0


class NotServing(Exception):
    """The probe failed; the message says why."""


def ask(settings: Settings, name: str) -> None:
    """Probes the gateway that the settings describe. Raises NotServing."""
    connection = _connection(settings)
    try:
        connection.request("GET", PATHS[name])
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise NotServing(f"{connection.host}:{connection.port}: {error}") from error
    finally:
        connection.close()
    if status != http.client.OK:
        reason = (
            "Envoy does not work" if name == "live" else "the authorizer does not answer, or the gateway is draining"
        )
        raise NotServing(f"{PATHS[name]} says {status}: {reason}")


def _connection(settings: Settings) -> http.client.HTTPConnection:
    gateway, own = settings.gateway, bool(settings.gateway.stats_port)
    host, port = (gateway.stats_host, gateway.stats_port) if own else (gateway.host, gateway.port)
    host = url_host(host).strip("[]")
    if own or settings.tls.edge is None:
        return http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    # The probe connects by address, which no certificate names, and the connection does not leave the container.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=context)


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    if len(arguments) != 1 or arguments[0] not in PATHS:
        print(f"usage: python -m gateway.probe {'|'.join(PATHS)}", file=sys.stderr)
        return 2
    try:
        ask(load_settings(), arguments[0])
    except (NotServing, SettingError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
