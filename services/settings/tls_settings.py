"""Certificates: the gateway's own, for its clients, and those by which gateway and services know each other.

All are PEM files, read again when they change; half of a set is refused by name.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from services.settings.setting_reader import SettingError, SettingReader

# Replicas are reached by changing addresses, so it is this name that is looked for in a service's certificate.
SERVICE_NAME = "allm-service"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate (chain) and its private key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ServiceTls:
    """How this process shows who it is to services, and which services and callers it believes."""

    authority: Path  # certificates of the authorities that may vouch for the other side
    pair: KeyPair


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """None: that way is not encrypted."""

    edge: KeyPair | None  # ALLM_TLS_CERT, ALLM_TLS_KEY: between clients and the gateway
    service: ServiceTls | None  # ALLM_SERVICE_TLS_CA, _CERT, _KEY: between gateway and services, and among these


def read_tls(read: SettingReader) -> TlsSettings:
    """Reads the paths, and whether the files belong together.

    Raises:
        SettingError: a part of a set is missing, or what a file holds cannot be used.
    """
    edge = _files(read, ("ALLM_TLS_CERT", "ALLM_TLS_KEY"))
    service = _files(read, ("ALLM_SERVICE_TLS_CA", "ALLM_SERVICE_TLS_CERT", "ALLM_SERVICE_TLS_KEY"))
    if edge:
        _check_pair("ALLM_TLS_CERT", "ALLM_TLS_KEY", *edge)
    if service:
        _check_authority("ALLM_SERVICE_TLS_CA", service[0])
        _check_pair("ALLM_SERVICE_TLS_CERT", "ALLM_SERVICE_TLS_KEY", *service[1:])
    return TlsSettings(
        edge=KeyPair(*edge) if edge else None,
        service=ServiceTls(service[0], KeyPair(*service[1:])) if service else None,
    )


def _files(read: SettingReader, variables: tuple[str, ...]) -> tuple[Path, ...]:
    """The files of a set; empty where none of it is set."""
    given = [variable for variable in variables if read.text(variable, "")]
    if not given:
        return ()
    for variable in variables:
        if variable not in given:
            raise SettingError(variable, "", f"a PEM file, as {' and '.join(given)} is set: all of them, or none")
    return tuple(read.path(variable, Path()) for variable in variables)


def _check_pair(certificate_variable: str, key_variable: str, certificate: Path, key: Path) -> None:
    _check_there(certificate_variable, certificate)
    _check_there(key_variable, key)
    try:
        # An empty password: a key that has one would make OpenSSL ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError):
        allowed = (
            f"the PEM file of an unencrypted private key that belongs to the certificate in {certificate_variable}"
        )
        raise SettingError(key_variable, str(key), allowed) from None


def _check_authority(variable: str, path: Path) -> None:
    _check_there(variable, path)
    try:
        ssl.create_default_context(cafile=path)
    except (ssl.SSLError, ValueError):
        raise SettingError(variable, str(path), "a PEM file of certificates") from None


def _check_there(variable: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise SettingError(variable, str(path), f"a file that can be read ({error.strerror})") from None
