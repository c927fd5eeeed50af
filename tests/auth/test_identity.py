"""Signed identities: the accepted form, and refusals of everything else."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from services.auth.identity import (
    ADMIN,
    ANONYMOUS,
    INFERENCE,
    MAX_CHARACTERS,
    SERVICE,
    WATCH_KEYS,
    Identity,
    own_identity,
    sign,
    verify,
)
from services.auth.identity_keys import AUTHORIZER, OPERATOR, ROLES, SERVICES, PublicKey, SigningKey
from services.errors import Unauthenticated
from tests.case import case
from tests.identities import KEYS, PUBLIC, new_key

AUTHORITY = KEYS[AUTHORIZER]
NOW = 1_800_000_000
ALICE = Identity("key_alice", frozenset({INFERENCE}), ("tiny", "big-*"), 600, NOW + 60)


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(payload: bytes, key: SigningKey = AUTHORITY, version: str = "v2") -> str:
    """Signs any payload, following the contract instead of allm's code."""
    before = f"{version}.{base64url(key.key.public_key().public_bytes_raw())}.{base64url(payload)}"
    return f"{before}.{base64url(key.key.sign(before.encode()))}"


def claims(**changed: Any) -> bytes:
    reported = {"sub": "key_alice", "scopes": ["inference"], "models": [], "tpm": 0, "exp": NOW + 60, **changed}
    return json.dumps(reported).encode()


def test_an_identity_comes_back_as_it_was_signed() -> None:
    assert verify(sign(ALICE, AUTHORITY), PUBLIC, NOW) == ALICE


def test_others_can_make_one_by_the_contract_alone() -> None:
    found = verify(signed(claims(models=["tiny"], tpm=7)), PUBLIC, NOW)
    assert found == Identity("key_alice", frozenset({INFERENCE}), ("tiny",), 7, NOW + 60)


def test_the_limits_of_the_lifetime() -> None:
    text = sign(ALICE, AUTHORITY)
    assert verify(text, PUBLIC, NOW + 59.9) == ALICE
    with pytest.raises(Unauthenticated, match="has expired"):
        verify(text, PUBLIC, NOW + 60)
    with pytest.raises(Unauthenticated, match="clocks of the machines"):
        verify(text, PUBLIC, NOW + 3600)


def test_a_key_that_is_not_listed() -> None:
    with pytest.raises(Unauthenticated, match="names a key that ALLM_IDENTITY_PUBLIC_KEYS_FILE does not list"):
        verify(sign(ALICE, new_key()), PUBLIC, NOW)


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_a_changed_character_anywhere(part: int) -> None:
    parts = sign(ALICE, AUTHORITY).split(".")
    for place in (0, -1):  # of the last character of a signature, four bits count
        changed = list(parts[part])
        changed[place] = "B" if changed[place] == "A" else "A"
        text = ".".join((*parts[:part], "".join(changed), *parts[part + 1 :]))
        with case(text=text), pytest.raises(Unauthenticated):
            verify(text, PUBLIC, NOW)


def test_the_payload_of_one_with_the_signature_of_another() -> None:
    mine, root = sign(ALICE, AUTHORITY), sign(Identity("root", frozenset({ADMIN}), (), 0, NOW + 60), AUTHORITY)
    with pytest.raises(Unauthenticated, match="wrong signature"):
        verify(root.rpartition(".")[0] + "." + mine.rpartition(".")[2], PUBLIC, NOW)


def test_a_signature_by_another_key_than_the_named_one() -> None:
    stranger = SigningKey(new_key().key, AUTHORITY.id)
    with pytest.raises(Unauthenticated, match="wrong signature"):
        verify(sign(ALICE, stranger), PUBLIC, NOW)


def test_every_role_signs_for_its_own_processes() -> None:
    scopes = {AUTHORIZER: {WATCH_KEYS}, OPERATOR: {ADMIN}, **{role: {SERVICE} for role in SERVICES}}
    for role in ROLES:
        found = verify(sign(own_identity(role, "allm-text-1", NOW + 60), KEYS[role]), PUBLIC, NOW)
        assert (found.subject, found.scopes) == (f"service:{role}/allm-text-1", scopes[role])


def test_no_role_signs_for_another() -> None:
    for role in ROLES:
        own = f"service:{role}/one"
        others = [own_identity(other, "one", NOW + 60) for other in ROLES if other != role]
        more = [
            Identity(own, frozenset((scope,)), expires=NOW + 60)
            for scope in (ADMIN, INFERENCE, SERVICE, WATCH_KEYS)
            if scope not in own_identity(role, "one").scopes
        ]
        odd = [Identity(f"service:{name}", frozenset(), expires=NOW + 60) for name in ("", "root/x", f"{role}x/one")]
        callers = [] if role == AUTHORIZER else [ALICE, Identity(role, frozenset(), expires=NOW + 60)]
        for forged in (*others, *more, *odd, *callers):
            with (
                case(role=role, forged=forged),
                pytest.raises(Unauthenticated, match=r"role \w+, which may not sign this"),
            ):
                verify(sign(forged, KEYS[role]), PUBLIC, NOW)


def test_the_authorizer_signs_callers_without_scopes_of_our_own() -> None:
    for scope in (SERVICE, WATCH_KEYS):
        caller = Identity("key_alice", frozenset((INFERENCE, scope)), expires=NOW + 60)
        with pytest.raises(Unauthenticated, match="role authorizer"):
            verify(sign(caller, AUTHORITY), PUBLIC, NOW)
    root = Identity("key_root", frozenset((ADMIN, INFERENCE)), expires=NOW + 60)
    assert verify(sign(root, AUTHORITY), PUBLIC, NOW) == root


def test_a_key_may_have_several_roles_and_a_role_several_keys() -> None:
    new = new_key()
    keys = {**PUBLIC, new.id: PublicKey(new.key.public_key(), frozenset(("text", "audio")))}
    for key, role in ((new, "text"), (new, "audio"), (KEYS["text"], "text")):
        who = own_identity(role, "one", NOW + 60)
        assert verify(sign(who, key), keys, NOW) == who
    with pytest.raises(Unauthenticated, match="role audio, text,"):
        verify(sign(own_identity("image", "one", NOW + 60), new), keys, NOW)


@pytest.mark.parametrize("version", ["v0", "v1", "", "V2", "v2.v2"])
def test_another_version_even_if_it_is_signed(version: str) -> None:
    with pytest.raises(Unauthenticated):
        verify(signed(claims(), version=version), PUBLIC, NOW)


def test_invalid_identities() -> None:
    for text in ["", "...", "v2", "v2.", "v2...", "v2.e30", "v2.e30.e30.", "Bearer x", "v2.\udce9.ü", "\0"]:
        with case(text=text), pytest.raises(Unauthenticated):
            verify(text, PUBLIC, NOW)
    for rest in ["", ".", "..", "\udce9.ü", "e30", "e30.", "e30.e30", "e30..e30"]:
        with case(rest=rest), pytest.raises(Unauthenticated):
            verify(f"v2.{AUTHORITY.id}.{rest}", PUBLIC, NOW)


def test_a_huge_identity_is_not_verified() -> None:
    with pytest.raises(Unauthenticated, match="longer"):
        verify(signed(claims(models=["m" * MAX_CHARACTERS])), PUBLIC, NOW)


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
            verify(signed(payload), PUBLIC, NOW)


def test_an_unknown_scope_grants_nothing() -> None:
    found = verify(signed(claims(scopes=["root", "inference "])), PUBLIC, NOW)
    assert not found.scopes & ANONYMOUS.scopes


def test_the_error_does_not_repeat_the_text() -> None:
    text = sign(ALICE, AUTHORITY)
    with pytest.raises(Unauthenticated) as caught:
        verify(text, PUBLIC, NOW + 100)
    assert text not in caught.value.message


def test_too_long_a_list_of_models_cannot_be_signed() -> None:
    with pytest.raises(ValueError, match="name fewer models"):
        sign(Identity("key", frozenset(), tuple(f"model-{number}" for number in range(1000)), 0, NOW), AUTHORITY)


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
