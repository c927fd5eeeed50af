"""TLS certificates: the gateway's own for its clients, and those for mutual TLS between gateway and services.

All are PEM files that are reloaded when they change; an incomplete set is refused, and the error names the variable.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from services.settings import setting
from services.settings.setting import SettingError

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


_pem = partial(setting.file, allowed="path of a PEM file")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS settings."""

    SECTION: ClassVar = "Who may call"
    edge_certificate: Path | None = _pem("ALLM_TLS_CERT", "gateway, image")
    """the gateway's certificate; with `ALLM_TLS_KEY`, the gateway's port serves HTTPS ([tls.md](tls.md))"""
    edge_key: Path | None = _pem("ALLM_TLS_KEY", "gateway")
    """private key of `ALLM_TLS_CERT`"""
    service_authority: Path | None = _pem("ALLM_SERVICE_TLS_CA", "gateway, allm, services")
    """authorities that gateway and services trust; together with `ALLM_SERVICE_TLS_CERT` and `ALLM_SERVICE_TLS_KEY`, it
    enables mutual TLS between them ([tls.md](tls.md))"""
    service_certificate: Path | None = _pem("ALLM_SERVICE_TLS_CERT", "gateway, allm, services")
    """certificate that this process presents to the gateway and the services"""
    service_key: Path | None = _pem("ALLM_SERVICE_TLS_KEY", "gateway, allm, services")
    """private key of `ALLM_SERVICE_TLS_CERT`"""

    @property
    def edge(self) -> KeyPair | None:
        """The gateway's certificate for its clients; None: that connection is not encrypted."""
        return KeyPair(self.edge_certificate, self.edge_key) if self.edge_certificate and self.edge_key else None

    @property
    def service(self) -> ServiceTls | None:
        """The files for connections between gateway and services, and among these; None: they are not encrypted."""
        if not (self.service_authority and self.service_certificate and self.service_key):
            return None
        return ServiceTls(self.service_authority, KeyPair(self.service_certificate, self.service_key))


def read_tls(environ: Mapping[str, str]) -> TlsSettings:
    """Reads the paths, and checks that the files belong together.

    Raises:
        SettingError: a part of a set is missing, or a file's content cannot be used.
    """
    tls = setting.read(TlsSettings, environ)
    _check_whole({"ALLM_TLS_CERT": tls.edge_certificate, "ALLM_TLS_KEY": tls.edge_key})
    if tls.edge:
        _check_pair("ALLM_TLS_CERT", "ALLM_TLS_KEY", tls.edge)
    _check_whole(
        {
            "ALLM_SERVICE_TLS_CA": tls.service_authority,
            "ALLM_SERVICE_TLS_CERT": tls.service_certificate,
            "ALLM_SERVICE_TLS_KEY": tls.service_key,
        }
    )
    if tls.service:
        _check_authority("ALLM_SERVICE_TLS_CA", tls.service.authority)
        _check_pair("ALLM_SERVICE_TLS_CERT", "ALLM_SERVICE_TLS_KEY", tls.service.pair)
    return tls


def _check_whole(files: Mapping[str, Path | None]) -> None:
    """Refuses a set of files, by variable, if only a part of it is set."""
    given = [variable for variable, path in files.items() if path]
    for variable, path in files.items():
        if given and not path:
            raise SettingError(variable, "", f"a PEM file, as {' and '.join(given)} is set: all of them, or none")


def _check_pair(certificate_variable: str, key_variable: str, pair: KeyPair) -> None:
    _check_readable(certificate_variable, pair.certificate)
    _check_readable(key_variable, pair.key)
    try:
        # An empty password: otherwise OpenSSL would prompt for an encrypted key's password on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair.certificate, pair.key, password="")
    except (ssl.SSLError, ValueError):
        allowed = (
            f"the PEM file of an unencrypted private key that belongs to the certificate in {certificate_variable}"
        )
        raise SettingError(key_variable, str(pair.key), allowed) from None


def _check_authority(variable: str, path: Path) -> None:
    _check_readable(variable, path)
    try:
        ssl.create_default_context(cafile=path)
    except (ssl.SSLError, ValueError):
        raise SettingError(variable, str(path), "a PEM file of certificates") from None


def _check_readable(variable: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise SettingError(variable, str(path), f"a file that can be read ({error.strerror})") from None
