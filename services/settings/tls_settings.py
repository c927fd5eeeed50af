"""TLS certificates: the gateway's own for its clients, and those for mutual TLS between gateway and services.

All are PEM files that are reloaded when they change; an incomplete set is refused, and the error names the variable.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from services.settings.setting_reader import SettingError, SettingReader

# Replicas have changing addresses, so clients check a service's certificate for this name instead.
SERVICE_NAME = "allm-service"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate (chain) and its private key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ServiceTls:
    """This process's certificate for mutual TLS with services, and the authorities that it trusts."""

    authority: Path  # certificates of the authorities that sign the other side's
    pair: KeyPair


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS settings. None: that connection is not encrypted."""

    edge: KeyPair | None  # ALLM_TLS_CERT, ALLM_TLS_KEY: between clients and the gateway
    service: ServiceTls | None  # ALLM_SERVICE_TLS_CA, _CERT, _KEY: between gateway and services, and among these


def read_tls(read: SettingReader) -> TlsSettings:
    """Reads the paths, and checks that the files belong together.

    Raises:
        SettingError: a part of a set is missing, or a file's content cannot be used.
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
    """Returns the files of a set; empty if none of it is set."""
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
        # An empty password: otherwise OpenSSL would prompt for an encrypted key's password on the terminal.
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
