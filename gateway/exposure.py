"""From where the gateway can be reached: without keys, and without another guard in front, from this machine alone."""

from __future__ import annotations

from dataclasses import replace

from gateway.address import LOCALHOST, is_loopback
from services.settings.settings import GatewaySettings

UNGUARDED = "none"  # of ALLM_AUTH
KEYS = "keys"


def is_confined(settings: GatewaySettings) -> bool:
    """Whether ALLM_HOST is not obeyed, since anybody who reached it could use the models."""
    return settings.auth == UNGUARDED and not is_loopback(settings.host)


def confined(settings: GatewaySettings) -> GatewaySettings:
    """The settings with the host that is really listened on."""
    return replace(settings, host=LOCALHOST) if is_confined(settings) else settings
