"""Renewal of certificates in use: half of a new pair is never loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from trustme import CA

from services.rpc.channel import CertificateFiles
from services.settings.tls_settings import KeyPair, ServiceTls

TLS = ("ca", "cert", "key")


def contents(authority: CA) -> dict[str, bytes]:
    made = authority.issue_cert("allm-service")
    return {
        "ca": authority.cert_pem.bytes(),
        "cert": made.cert_chain_pems[0].bytes(),
        "key": made.private_key_pem.bytes(),
    }


def move(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / "partial").write_bytes(content)
        (folder / "partial").replace(folder / name)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    move(tmp_path, contents(CA()))
    return CertificateFiles(ServiceTls(tmp_path / "ca", KeyPair(tmp_path / "cert", tmp_path / "key")))


def test_the_same_files_are_no_news(files: CertificateFiles, tmp_path: Path) -> None:
    assert files.first().key == (tmp_path / "key").read_bytes()
    assert files.news() is None


def test_a_new_pair_is_taken_once_it_is_whole(files: CertificateFiles, tmp_path: Path) -> None:
    files.first()
    new = contents(CA())
    move(tmp_path, {"ca": new["ca"], "cert": new["cert"]})
    assert files.news() is None, "the key is still that of the old certificate"
    move(tmp_path, {"key": new["key"]})
    found = files.news()
    assert found
    assert (found.authority, found.chain, found.key) == tuple(new[name] for name in TLS)
    assert files.news() is None


def test_files_that_are_gone_for_a_moment_harm_nothing(files: CertificateFiles, tmp_path: Path) -> None:
    files.first()
    new = contents(CA())
    (tmp_path / "cert").unlink()
    assert files.news() is None
    move(tmp_path, new)
    assert files.news()


def test_a_start_with_what_cannot_be_used_says_which_files(files: CertificateFiles, tmp_path: Path) -> None:
    move(tmp_path, {"key": contents(CA())["key"]})
    with pytest.raises(OSError, match=f"{tmp_path}/cert and {tmp_path}/key do not match"):
        files.first()
