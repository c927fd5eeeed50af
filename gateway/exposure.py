"""The exposure of the gateway: without keys or another guard in front, it is reachable only from this machine."""

from __future__ import annotations

from dataclasses import replace

from gateway.address import LOCALHOST, is_loopback
from services.settings.gateway_settings import GatewaySettings

UNGUARDED = "none"  # value of ALLM_AUTH
KEYS = "keys"


def is_confined(settings: GatewaySettings) -> bool:
    """Reports whether ALLM_HOST is overridden, because anybody who could reach it could use the models."""
    return settings.auth == UNGUARDED and not is_loopback(settings.host)


def confined(settings: GatewaySettings) -> GatewaySettings:
    """Returns the settings with the host that the gateway really listens on."""
    return replace(settings, host=LOCALHOST) if is_confined(settings) else settings
