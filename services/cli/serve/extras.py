"""Checks which optional extras of allm are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace

from services.settings.setting_reader import SettingError
from services.settings.settings import Settings
from services.settings.trace_settings import ENDPOINT, EXTRA

# The packages of the extra `audio`, which the audio service and its processes import.
AUDIO_PACKAGES = ("av", "faster_whisper", "numpy", "python_multipart")
NO_AUDIO = "The audio service is not installed: pip install 'allm-server[audio]', or set ALLM_AUDIO_REPLICAS=0"
# The packages of the extra `image`.
IMAGE_PACKAGES = ("PIL", "diffusers", "peft", "python_multipart", "safetensors", "torch", "transformers")
NO_IMAGE = "The image service is not installed: pip install 'allm-server[image]', or set ALLM_IMAGE_REPLICAS=0"


# The packages of the extra `traces`, which every service needs to make traces.
TRACES_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")


def check_traces(settings: Settings) -> None:
    """Raises SettingError if traces are enabled but their packages are missing: no service would start."""
    if settings.trace.wanted and not _installed(TRACES_PACKAGES):
        raise SettingError(ENDPOINT, "...", EXTRA)


def with_installed(settings: Settings, say: Callable[[str], None]) -> Settings:
    """Disables the services whose packages are missing, and reports each."""
    if settings.audio_replicas and not _installed(AUDIO_PACKAGES):
        say(NO_AUDIO)
        settings = replace(settings, audio_replicas=0)
    if settings.image_replicas and not _installed(IMAGE_PACKAGES):
        say(NO_IMAGE)
        settings = replace(settings, image_replicas=0)
    return settings


def _installed(packages: Sequence[str]) -> bool:
    try:
        return all(map(importlib.util.find_spec, packages))  # imports nothing
    except ModuleNotFoundError:  # the parent package is missing, too
        return False
