"""The patterns for `Host` and `Origin`; that Envoy applies them is tested in test_gates."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest

from gateway.admission import PATH_PATTERN, host_pattern, listed_origins_pattern
from tests.case import case
from tests.gateway.envoy_process import EVERYWHERE, gateway_settings

LITERALS = ["192.168.1.2", "192.168.1.2:8080", "[fe80::1]:8080", "[::ffff:1.2.3.4]"]


def lets_in(host: str, bound_to: str = "127.0.0.1", allowed: tuple[str, ...] = ()) -> bool:
    pattern = host_pattern(gateway_settings(host=bound_to, allowed_hosts=allowed))
    return re.fullmatch(pattern, host) is not None


def test_loopback_names_always_pass() -> None:
    for bound_to in ["127.0.0.1", "localhost", "::1", "127.0.0.2", EVERYWHERE, "::", "192.168.1.2"]:
        with case(bound_to=bound_to):
            for host in ("localhost", "localhost:1", "127.0.0.1:8080", "127.9.9.9", "[::1]", "[::1]:8080", "LocalHost"):
                assert lets_in(host, bound_to), host


@pytest.mark.parametrize("host", LITERALS)
def test_other_literals_pass_beyond_loopback_only(host: str) -> None:
    assert lets_in(host, EVERYWHERE)
    assert lets_in(host, "192.168.1.2")
    assert not lets_in(host, "127.0.0.1")


@pytest.mark.parametrize("bound_to", ["127.0.0.1", EVERYWHERE])
def test_names_must_be_listed(bound_to: str) -> None:
    assert not lets_in("allm.example", bound_to)
    assert lets_in("allm.example", bound_to, ("other", "allm.example"))
    assert lets_in("ALLM.example:443", bound_to, ("other", "allm.example"))
    assert not lets_in("allmXexample", bound_to, ("allm.example",))
    assert lets_in("whatever.example:1", bound_to, ("*",))


@pytest.mark.parametrize(
    "host", ["", "localhost.evil.example", "evil.example#localhost", "127.0.0.1.evil.example", "1.2"]
)
def test_lookalikes_do_not_pass(host: str) -> None:
    assert not lets_in(host)
    assert not lets_in(host, EVERYWHERE)


def test_origins_match_whole() -> None:
    pattern = listed_origins_pattern(gateway_settings(cors_origins=("https://a.example", "http://b.example:3000")))
    assert re.fullmatch(pattern, "https://a.example")
    assert re.fullmatch(pattern, "http://b.example:3000")
    for origin in ("https://aXexample", "https://a.example.evil", "http://a.example", "http://b.example", ""):
        assert not re.fullmatch(pattern, origin), origin


def test_without_origins_none_matches() -> None:
    pattern = listed_origins_pattern(gateway_settings())
    for origin in ("", "null", "http://localhost"):
        assert not re.fullmatch(pattern, origin)


@pytest.mark.parametrize(
    "path", ["/", "/v1/models/a%2Fb", "/v1/models?state=all&x=100%25", "/v1/models/%c3%a9", "/\u2603", "/%F0%9F%98%80"]
)
def test_readable_paths_pass(path: str) -> None:
    assert re.fullmatch(PATH_PATTERN, path)


@pytest.mark.parametrize(
    "path", ["/%ff", "/a%00b", "/%0A", "/?after=%7f", "/%c2%85", "/%ed%a0%80", "/%c0%af", "/%f4%90%80%80", "/%", "/%zz"]
)
def test_unreadable_paths_do_not_pass(path: str) -> None:
    assert not re.fullmatch(PATH_PATTERN, path)


def test_the_pattern_agrees_with_python_about_utf_8() -> None:
    chosen = random.Random(1)  # noqa: S311 (no secret)
    edges = (0x1F, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5)
    for _ in range(20_000):
        data = bytes(chosen.choice((chosen.choice(edges), chosen.randrange(256))) for _ in range(chosen.randint(1, 5)))
        try:
            readable = all(unicodedata.category(letter) != "Cc" for letter in data.decode())
        except UnicodeDecodeError:
            readable = False
        path = "".join(f"%{byte:02X}" for byte in data)
        assert bool(re.fullmatch(PATH_PATTERN, path)) == readable, path
