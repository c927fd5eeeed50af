"""TLS settings: all of a set or none, and valid files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from trustme import CA

from services.settings.setting import SettingError
from services.settings.settings import load_settings
from services.settings.tls_settings import KeyPair, ServiceTls, TlsSettings, read_tls

EDGE = ("ALLM_TLS_CERT", "ALLM_TLS_KEY")
SERVICE = ("ALLM_SERVICE_TLS_CA", "ALLM_SERVICE_TLS_CERT", "ALLM_SERVICE_TLS_KEY")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Returns every TLS setting with a valid file."""
    authority = CA()
    made = authority.issue_cert("localhost")
    contents = {"ca": authority.cert_pem, "key": made.private_key_pem, "cert": made.cert_chain_pems[0]}
    for name, content in contents.items():
        content.write_to_path(tmp_path / name)
    return {name: str(tmp_path / name.rpartition("_")[2].lower()) for name in (*EDGE, *SERVICE)}


def test_without_settings_nothing_is_encrypted() -> None:
    found = read_tls({})
    assert (found, found.edge, found.service) == (TlsSettings(), None, None)


def test_each_way_by_itself_or_both(files: dict[str, str], tmp_path: Path) -> None:
    pair = KeyPair(tmp_path / "cert", tmp_path / "key")
    edge = {name: files[name] for name in EDGE}
    service = {name: files[name] for name in SERVICE}
    for environ in (edge, service, edge | service):
        found = read_tls(environ)
        assert found.edge == (pair if edge.items() <= environ.items() else None)
        assert found.service == (ServiceTls(tmp_path / "ca", pair) if service.items() <= environ.items() else None)


@pytest.mark.parametrize("variable", [*EDGE, *SERVICE])
def test_half_of_a_set_is_refused_with_the_missing_name(files: dict[str, str], variable: str) -> None:
    del files[variable]
    with pytest.raises(SettingError, match=f"^{variable}='' .* all of them, or none"):
        read_tls(files)


@pytest.mark.parametrize("variable", [*EDGE, *SERVICE])
def test_a_missing_file_is_named(files: dict[str, str], variable: str) -> None:
    files[variable] += "-elsewhere"
    with pytest.raises(SettingError, match=f"^{variable}=.*No such file"):
        read_tls(files)


@pytest.mark.parametrize(
    ("variable", "change", "named"),
    [
        ("ALLM_TLS_CERT", lambda _: b"no certificate", "ALLM_TLS_KEY"),
        ("ALLM_TLS_KEY", lambda _: CA().issue_cert("localhost").private_key_pem.bytes(), "ALLM_TLS_KEY"),
        ("ALLM_SERVICE_TLS_KEY", lambda key: key[: len(key) // 2], "ALLM_SERVICE_TLS_KEY"),
        ("ALLM_SERVICE_TLS_CA", lambda _: b"", "ALLM_SERVICE_TLS_CA"),
    ],
    ids=["text", "another-key", "half", "empty"],
)
def test_incompatible_values_are_refused(
    files: dict[str, str], tmp_path: Path, variable: str, change: Callable[[bytes], bytes], named: str
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(change(Path(files[variable]).read_bytes()))
    files[variable] = str(wrong)
    with pytest.raises(SettingError, match=f"^{named}="):
        read_tls(files)


def test_addresses_of_pictures_are_https_then(files: dict[str, str]) -> None:
    edge = {name: files[name] for name in EDGE} | {"ALLM_PORT": "8443"}
    assert load_settings(edge).image.public_url == "https://127.0.0.1:8443"
    assert load_settings(edge | {"ALLM_PUBLIC_URL": "http://a.example"}).image.public_url == "http://a.example"
