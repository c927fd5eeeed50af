"""The trace settings: the OTLP endpoint and its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.settings import setting
from services.settings.setting import SettingError
from services.settings.trace_settings import NO_TRACES, TraceSettings
from tests.case import case

HOST = "ALLM_OTLP_ENDPOINT"


def read(**environ: str) -> TraceSettings:
    return setting.read(TraceSettings, environ)


def test_no_traces_without_an_endpoint() -> None:
    assert read() == NO_TRACES
    assert not read().wanted


@pytest.mark.parametrize(
    ("endpoint", "host", "port", "tls"),
    [
        ("http://collector:4317", "collector", 4317, False),
        ("https://otlp.example.org", "otlp.example.org", 4317, True),
        ("http://[::1]:9/", "::1", 9, False),
    ],
)
def test_an_endpoint_is_a_host_a_port_and_whether_it_is_encrypted(
    endpoint: str, host: str, port: int, tls: bool
) -> None:
    settings = read(**{HOST: endpoint})
    assert settings.wanted
    assert settings.collector == (host, port, tls)


def test_invalid_endpoint_is_refused_without_repeating_it() -> None:
    for endpoint in [
        "collector:4317",
        "grpc://collector",
        "http://",
        "http://c:0",
        "http://c:99999",
        "http://c/v1/traces",
        "http://user:secret-word@c",
        "http://c?secret-word",
    ]:
        with case(endpoint=endpoint):
            with pytest.raises(SettingError, match=HOST) as caught:
                read(**{HOST: endpoint})
            assert "secret-word" not in str(caught.value)


def test_headers_are_pairs_and_no_text_of_settings_shows_them() -> None:
    settings = read(ALLM_OTLP_HEADERS="Authorization=Bearer secret-word==, x-scope = a")
    assert settings.headers == (("authorization", "Bearer secret-word=="), ("x-scope", "a"))
    assert "secret-word" not in repr(settings)


def test_headers_of_another_shape_are_refused_without_repeating_them() -> None:
    for headers in ["secret-word", "=secret-word", "a b=secret-word", "a=secret-word\u00fc", "a=secret-word%", "a="]:
        with case(headers=headers):
            with pytest.raises(SettingError, match="ALLM_OTLP_HEADERS") as caught:
                read(ALLM_OTLP_HEADERS=headers)
            assert "secret-word" not in str(caught.value)


def test_the_other_settings() -> None:
    assert read(ALLM_TRACE_SAMPLING="0.25").sampling == 0.25
    assert read(ALLM_TRACE_PARENTS="ignore").parents == "ignore"
    assert read(ALLM_OTLP_CA_FILE="/etc/ca.pem").authorities == Path("/etc/ca.pem")
    assert read().authorities.is_absolute(), "those of the system"
    for wrong in ({"ALLM_TRACE_SAMPLING": "1.5"}, {"ALLM_TRACE_PARENTS": "maybe"}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            read(**wrong)
