"""The current certificates for mutual TLS between our own processes: they are renewed while we run."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass

from services.settings.tls_settings import ServiceTls

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The content of the files, in PEM."""

    authority: bytes
    chain: bytes
    key: bytes


class CertificateFiles:
    """The certificate files, read again when they have changed. Any thread may call it, one at a time."""

    def __init__(self, tls: ServiceTls) -> None:
        self._tls = tls
        self._stamp: tuple[tuple[int, int, int], ...] = ()

    def first(self) -> Certificates:
        """Returns the certificates at the start. Raises OSError if they cannot be used."""
        found = self.news()
        if found is None:
            raise OSError(f"{self._tls.pair.certificate} and {self._tls.pair.key} do not belong together")
        return found

    def news(self) -> Certificates | None:
        """Returns the certificates if they have changed since the last call; None also during a replacement."""
        try:
            stamp = self._now()
            if stamp == self._stamp:
                return None
            pair = self._tls.pair
            found = Certificates(self._tls.authority.read_bytes(), pair.certificate.read_bytes(), pair.key.read_bytes())
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair.certificate, pair.key, password="")
            if stamp != self._now():
                return None
        except (OSError, ValueError) as error:  # the pair is incomplete; an SSLError is an OSError
            log.warning("new certificates cannot be used yet", extra={"reason": str(error)})
            return None
        self._stamp = stamp
        return found

    def _now(self) -> tuple[tuple[int, int, int], ...]:
        files = (self._tls.authority, self._tls.pair.certificate, self._tls.pair.key)
        states = (file.stat() for file in files)
        return tuple((state.st_ino, state.st_mtime_ns, state.st_size) for state in states)
