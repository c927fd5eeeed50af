"""The files of keys: private keys for their owner only, public keys with roles, read again when they change."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from services.auth.identity_keys import (
    MAX_BYTES,
    ROLES,
    KeysUnusable,
    PublicKeyFile,
    base64url,
    create_keys,
    parse_public_keys,
    read_key,
    unbase64url,
)
from tests.case import case
from tests.identities import KEYS, new_key

TEXT, AUDIO = KEYS["text"].id, KEYS["audio"].id


def files(folder: Path) -> dict[str, Path]:
    return {role: folder / f"{role}.key" for role in ROLES}


def test_every_role_gets_a_private_key_of_its_own(tmp_path: Path) -> None:
    folder, public = tmp_path / "a" / "identity", tmp_path / "a" / "identity" / "public.keys"
    create_keys(files(folder), public)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["public.keys", *(f"{role}.key" for role in ROLES)])
    assert {path.stat().st_mode & 0o777 for path in files(folder).values()} == {0o600}
    assert public.stat().st_mode & 0o022 == 0
    ids = {read_key(path).id: {role} for role, path in files(folder).items()}
    assert {key_id: key.roles for key_id, key in PublicKeyFile(public).read().items()} == ids
    assert len(ids) == len(ROLES)


def test_present_keys_stay_and_missing_ones_are_added(tmp_path: Path) -> None:
    public = tmp_path / "public.keys"
    create_keys(files(tmp_path), public)
    public.write_text(public.read_text() + f"{TEXT} text # of another machine")  # without a last newline
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    create_keys(files(tmp_path), public)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "image.key").unlink()
    create_keys(files(tmp_path), public)
    assert public.read_text().startswith(before[public].decode())
    found = PublicKeyFile(public).read()
    assert [key.roles for key in found.values()].count(frozenset({"image"})) == 2, "the old key may still be in use"
    assert read_key(tmp_path / "image.key").id in found
    assert TEXT in found


def test_two_roles_never_share_a_file(tmp_path: Path) -> None:
    with pytest.raises(KeysUnusable, match="ROLE"):
        create_keys(dict.fromkeys(ROLES, tmp_path / "one.key"), tmp_path / "public.keys")
    assert list(tmp_path.iterdir()) == []


def test_a_private_key_of_another_kind_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "text.key"
    form = Encoding.PEM, PrivateFormat.PKCS8
    for content in [
        b"",
        b"5" * 64,
        Ed448PrivateKey.generate().private_bytes(*form, NoEncryption()),
        new_key().key.private_bytes(*form, BestAvailableEncryption(b"password")),
    ]:
        path.write_bytes(content)
        for attempt in (lambda: read_key(path), lambda: create_keys({"text": path}, tmp_path / "public.keys")):
            with case(content=content), pytest.raises(KeysUnusable, match=r"ALLM_IDENTITY_KEY_FILE=.*`allm identity"):
                attempt()
        assert path.read_bytes() == content


def test_files_that_cannot_be_used_are_named_with_their_setting(tmp_path: Path) -> None:
    with pytest.raises(KeysUnusable, match=r"ALLM_IDENTITY_KEY_FILE=.*No such file"):
        read_key(tmp_path / "none")
    with pytest.raises(KeysUnusable, match=r"ALLM_IDENTITY_PUBLIC_KEYS_FILE=.*No such file"):
        PublicKeyFile(tmp_path / "none").read()
    (tmp_path / "file").touch()
    with pytest.raises(KeysUnusable, match="cannot be created"):
        create_keys({"text": tmp_path / "file" / "text.key"}, tmp_path / "public.keys")
    long = tmp_path / "long"
    long.write_text(f"{TEXT} text\n" + "#" * MAX_BYTES)
    with pytest.raises(KeysUnusable, match=f"more than {MAX_BYTES} bytes"):
        PublicKeyFile(long).read()


def test_lines_of_public_keys() -> None:
    found = parse_public_keys(f"\n# all\n  {TEXT}\ttext  # of Ann\r\n{AUDIO} audio,image\n{TEXT} image\n".encode())
    assert {key_id: key.roles for key_id, key in found.items()} == {TEXT: {"text", "image"}, AUDIO: {"audio", "image"}}
    for line in [
        TEXT,
        f"{TEXT} root",
        f"{TEXT} text,",
        f"{TEXT} text image",
        f"{TEXT[:-1]} text",
        "é text",
    ]:
        with case(line=line), pytest.raises(ValueError, match=r"^line 2 must"):
            parse_public_keys(f"{AUDIO} audio\n{line}\n".encode())
    for content in (b"", b"# nothing\n"):
        with pytest.raises(ValueError, match="contains no key"):
            parse_public_keys(content)


def test_a_changed_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "public.keys"
    path.write_text(f"{TEXT} text\n")
    file = PublicKeyFile(path)
    assert set(file.read()) == {TEXT}
    assert file.news() is None
    (tmp_path / "next").write_text(f"{TEXT} text\n{AUDIO} audio\n")
    (tmp_path / "next").replace(path)
    assert set(file.news() or ()) == {TEXT, AUDIO}
    assert file.news() is None
    for spoil in (lambda: path.write_text("half"), path.unlink):
        caplog.clear()
        spoil()
        assert (file.news(), file.news()) == (None, None)
        assert len(caplog.records) == 1, "one warning is enough"
    path.write_text(f"{AUDIO} audio\n")
    assert set(file.news() or ()) == {AUDIO}


def test_only_one_spelling_is_decoded() -> None:
    assert unbase64url(base64url(b"\xfb\xff")) == unbase64url("-_8") == b"\xfb\xff"
    for other in ("+/8", "-_8=", "-_8\n", "-_ 8", "-_8!", "-_9", "-_8A=", "é", "a"):
        with case(other=other):
            assert unbase64url(other) == b""
