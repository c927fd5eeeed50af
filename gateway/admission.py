"""The `Host` and `Origin` headers, and the paths, that the gateway accepts.

Any page in a browser can send requests to a loopback port, and by DNS rebinding can even read the answers: the name of
its own site suddenly resolves to 127.0.0.1. A rebound request still carries that name in `Host`, so only known names
are accepted. An address literal cannot be rebound, so a gateway beyond loopback accepts every literal: clients use
whichever of the machine's addresses they can reach.
"""

from __future__ import annotations

import ipaddress
import re

from gateway.address import is_loopback
from services.settings.gateway_settings import GatewaySettings

LOOPBACK_HOSTS = (r"localhost", r"127(?:\.[0-9]{1,3}){3}", r"\[::1\]")
# Paths and queries: percent-encoded UTF-8 without control characters. It reads from the last byte of a character, `_M`,
# to its first, so that all lengths share their ends: Envoy limits the size of an expression.
_X = "[0-9a-f]"
_M = f"%[89ab]{_X}"
_FOUR = f"f0%[9ab]{_X}|f[1-3]{_M}|f4%8{_X}"
_THREE = f"e0%[ab]{_X}|ed%[89]{_X}|(?:e[1-9abcef]|{_FOUR}){_M}"
_TWO = f"c2%[ab]{_X}|(?:c[3-9a-f]|d{_X}|{_THREE}){_M}"
PATH_PATTERN = rf"(?i)(?:[^%\x00-\x1f\x7f]|%(?:[2-6]{_X}|7[0-9a-e]|{_TWO}))*"  # RE2, whole string
ANY_LITERAL = (r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", r"\[[0-9a-f:.]+\]")


def host_pattern(settings: GatewaySettings) -> str:
    """Returns a regular expression (RE2, whole string) for the accepted `Host` headers, with any port."""
    if "*" in settings.allowed_hosts:
        return ".*"
    names = [*LOOPBACK_HOSTS, *map(re.escape, settings.allowed_hosts)]
    if not is_loopback(settings.host):
        names += ANY_LITERAL
    elif settings.host != "localhost":
        names.append(re.escape(_bracketed(settings.host)))
    return f"(?i)(?:{'|'.join(names)})(?::[0-9]+)?"


def listed_origins_pattern(settings: GatewaySettings) -> str:
    """Returns a regular expression (RE2, whole string) for ALLM_CORS_ORIGINS; without any, it matches no origin."""
    return "|".join(map(re.escape, settings.cors_origins)) or "-"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
