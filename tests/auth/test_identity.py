"""Signed identities: the accepted form, and refusals of everything else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from services.auth.identity import ADMIN, ANONYMOUS, INFERENCE, MAX_CHARACTERS, Identity, sign, verify
from services.errors import Unauthenticated
from tests.case import case

SECRET = b"0123456789abcdef0123456789abcdef"
NOW = 1_800_000_000
ALICE = Identity("key_alice", frozenset({INFERENCE}), ("tiny", "big-*"), 600, NOW + 60)


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(payload: bytes, secret: bytes = SECRET, version: str = "v1") -> str:
    """Signs any payload, following the contract instead of allm's code."""
    before = f"{version}.{base64url(payload)}"
    return f"{before}.{base64url(hmac.new(secret, before.encode(), hashlib.sha256).digest())}"


def claims(**changed: Any) -> bytes:
    told = {"sub": "key_alice", "scopes": ["inference"], "models": [], "tpm": 0, "exp": NOW + 60, **changed}
    return json.dumps(told).encode()


def test_an_identity_comes_back_as_it_was_signed() -> None:
    assert verify(sign(ALICE, SECRET), SECRET, NOW) == ALICE


def test_others_can_make_one_by_the_contract_alone() -> None:
    found = verify(signed(claims(models=["tiny"], tpm=7)), SECRET, NOW)
    assert found == Identity("key_alice", frozenset({INFERENCE}), ("tiny",), 7, NOW + 60)


def test_the_limits_of_the_lifetime() -> None:
    text = sign(ALICE, SECRET)
    assert verify(text, SECRET, NOW + 59.9) == ALICE
    with pytest.raises(Unauthenticated, match="has expired"):
        verify(text, SECRET, NOW + 60)
    with pytest.raises(Unauthenticated, match="clocks of the machines"):
        verify(text, SECRET, NOW + 3600)


def test_another_secret() -> None:
    with pytest.raises(Unauthenticated, match="ALLM_IDENTITY_SECRET_FILE"):
        verify(sign(ALICE, b"x" * 32), SECRET, NOW)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_changed_character_anywhere(part: int) -> None:
    parts = sign(ALICE, SECRET).split(".")
    parts[part] = parts[part][:-1] + ("A" if parts[part][-1] != "A" else "B")
    with pytest.raises(Unauthenticated):
        verify(".".join(parts), SECRET, NOW)


def test_the_payload_of_one_with_the_signature_of_another() -> None:
    mine = sign(ALICE, SECRET)
    root = sign(Identity("root", frozenset({ADMIN}), (), 0, NOW + 60), b"y" * 32)
    with pytest.raises(Unauthenticated, match="not signed"):
        verify(root.rpartition(".")[0] + "." + mine.rpartition(".")[2], SECRET, NOW)


@pytest.mark.parametrize("version", ["v0", "v2", "", "V1", "v1.v1"])
def test_another_version_even_if_it_is_signed(version: str) -> None:
    with pytest.raises(Unauthenticated):
        verify(signed(claims(), version=version), SECRET, NOW)


def test_what_is_no_identity_at_all() -> None:
    for text in ["", ".", "..", "v1", "v1.", "v1..", "v1.e30", "v1.e30.", "Bearer x", "v1.\udce9.ü", "\0"]:
        with case(text=text), pytest.raises(Unauthenticated):
            verify(text, SECRET, NOW)


def test_one_that_is_huge_is_not_even_hashed() -> None:
    with pytest.raises(Unauthenticated, match="longer"):
        verify(signed(claims(models=["m" * MAX_CHARACTERS])), SECRET, NOW)


def test_a_payload_of_another_shape_even_if_it_is_signed() -> None:
    for payload in [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'"key_alice"',
        b"{",
        b"[" * 3000,
        claims(sub=""),
        claims(sub=None),
        claims(sub=["key_alice"]),
        claims(scopes="admin"),
        claims(scopes=None),
        claims(scopes=[1]),
        claims(scopes={"admin": True}),
        claims(models="tiny"),
        claims(models=[["tiny"]]),
        claims(models=[""]),
        claims(models=None),
        claims(tpm="7"),
        claims(tpm=-1),
        claims(tpm=1.5),
        claims(tpm=True),
        claims(exp=None),
        claims(exp="2100"),
        claims(exp=float("nan")),
        claims(exp=float("inf")),
    ]:
        with case(payload=payload), pytest.raises(Unauthenticated):
            verify(signed(payload), SECRET, NOW)


def test_an_unknown_scope_grants_nothing() -> None:
    found = verify(signed(claims(scopes=["root", "inference "])), SECRET, NOW)
    assert not found.scopes & ANONYMOUS.scopes


def test_the_error_does_not_repeat_the_text() -> None:
    text = sign(ALICE, SECRET)
    with pytest.raises(Unauthenticated) as caught:
        verify(text, SECRET, NOW + 100)
    assert text not in caught.value.message


def test_too_long_a_list_of_models_cannot_be_signed() -> None:
    with pytest.raises(ValueError, match="name fewer models"):
        sign(Identity("key", frozenset(), tuple(f"model-{number}" for number in range(1000)), 0, NOW), SECRET)


def test_which_models_a_list_allows() -> None:
    for models, names, allowed in [
        ((), ("anything",), True),
        (("tiny",), ("tiny",), True),
        (("tiny",), ("tiny-2",), False),
        (("tiny",), ("hf/tiny", "tiny"), True),
        (("big-*",), ("big-one",), True),
        (("big-*",), ("a-big-one",), False),
        (("*",), ("whatever",), True),
        (("b*g",), ("big",), False),
    ]:
        with case(models=models, names=names, allowed=allowed):
            assert Identity("key", frozenset(), models).may_use(*names) is allowed
