"""The services of a stack by its settings; the tests of `allm serve` run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.serve.stack import Stack, audio_names, image_names, text_names
from services.settings.settings import load_settings


@pytest.mark.parametrize(
    ("replicas", "names"),
    [
        ((1, 1, 1), ["catalog", "text", "audio", "image", "gateway"]),
        ((1, 0, 0), ["catalog", "text", "gateway"]),
        ((1, 0, 1), ["catalog", "text", "image", "gateway"]),
        ((2, 2, 2), ["catalog", "text-1", "text-2", "audio-1", "audio-2", "image-1", "image-2", "gateway"]),
    ],
)
def test_the_gateway_starts_last_and_knows_all_others(
    tmp_path: Path, replicas: tuple[int, int, int], names: list[str]
) -> None:
    names_of = ("ALLM_TEXT_REPLICAS", "ALLM_AUDIO_REPLICAS", "ALLM_IMAGE_REPLICAS")
    environ = {"ALLM_HOME": str(tmp_path), **dict(zip(names_of, map(str, replicas), strict=True))}
    ports = {name: 9000 + at for at, name in enumerate(names[:-1])}
    settings = load_settings({**environ, "ALLM_PORT": "8081"})
    stack = Stack(settings, tmp_path, {**environ, "ALLM_PORT": "0"}, ports, print)
    services = stack.services()
    assert [service.program.name for service in services] == names
    config = (tmp_path / "envoy.yaml").read_text()
    for service in services[:-1]:
        name, environ = service.program.name, service.program.environ
        module = service.program.command[-1]
        assert module == f"services.{name.partition('-')[0]}"
        assert environ["ALLM_LISTEN"] == f"unix:{tmp_path / name}.sock"
        assert environ["ALLM_METRICS_PORT"] == str(ports[name])
        assert load_settings(environ).image.public_url == "http://127.0.0.1:8081", "the port that the gateway has"
        assert f'"path": "{tmp_path / name}.sock"' in config
    assert set(stack.metrics_urls) == set(names[:-1])
    text, audio, image = replicas
    assert text_names(text) + audio_names(audio) + image_names(image) == names[1:-1]
