"""Certificates of a test authority, stored as operators store them: PEM files in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key, and the authority that signed it."""

    authority: Path
    chain: Path
    key: Path

    def edge(self) -> dict[str, str]:
        """The settings of a gateway that uses it for clients."""
        return {"ALLM_TLS_CERT": str(self.chain), "ALLM_TLS_KEY": str(self.key)}

    def service(self) -> dict[str, str]:
        """The settings of gateway and services that use it between each other."""
        return {
            "ALLM_SERVICE_TLS_CA": str(self.authority),
            "ALLM_SERVICE_TLS_CERT": str(self.chain),
            "ALLM_SERVICE_TLS_KEY": str(self.key),
        }


def issue(folder: Path, authority: trustme.CA, *names: str) -> Certificate:
    """Issues a new certificate for these names; replaces each file atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    made = authority.issue_cert(*names)
    files = {
        "ca.crt": authority.cert_pem.bytes(),
        "tls.crt": b"".join(part.bytes() for part in made.cert_chain_pems),
        "tls.key": made.private_key_pem.bytes(),
    }
    for name, content in files.items():
        partial = folder / f".{name}"
        partial.write_bytes(content)
        partial.replace(folder / name)
    return Certificate(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
