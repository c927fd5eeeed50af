"""`python -m gateway.probe live|ready`: probes the gateway of this container over its own loopback.

Container engines use it, and Kubernetes if the gateway listens on loopback only (ALLM_AUTH=none), which a kubelet
cannot reach. `live`: it accepts connections. `ready`: /healthz returns 200, so there is a text replica. The exit status
is 0 on success, else 1 with the reason in a sentence.
"""

from __future__ import annotations

import http.client
import ssl
import sys

from gateway.address import url_host
from services.settings.setting_reader import SettingError
from services.settings.settings import Settings, load_settings

NAMES = ("live", "ready")
ANSWER_SECONDS = 5.0


class NotServing(Exception):
    """The probe failed; the message says why."""


def ask(settings: Settings, name: str) -> None:
    """Probes the gateway that the settings describe. Raises NotServing."""
    connection = _connection(settings)
    try:
        connection.connect()
        if name == "live":
            return
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise NotServing(f"{connection.host}:{connection.port}: {error}") from error
    finally:
        connection.close()
    if status != http.client.OK:
        raise NotServing(f"/healthz says {status}: no text replica is healthy, or the gateway is draining")


def _connection(settings: Settings) -> http.client.HTTPConnection:
    host, port = url_host(settings.gateway.host).strip("[]"), settings.gateway.port
    if settings.tls.edge is None:
        return http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    # The probe connects by address, which no certificate names, and the connection does not leave the container.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=context)


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    if len(arguments) != 1 or arguments[0] not in NAMES:
        print(f"usage: python -m gateway.probe {'|'.join(NAMES)}", file=sys.stderr)
        return 2
    try:
        ask(load_settings(), arguments[0])
    except (NotServing, SettingError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
