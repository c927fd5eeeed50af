"""Which optional parts of allm are installed: those that bring a service of their own."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace

from services.rpc.settings import Settings

# What the audio service and its processes import, all of the extra `audio`.
AUDIO_PACKAGES = ("av", "faster_whisper", "numpy", "python_multipart")
NO_AUDIO = (
    "There is no audio service: pip install 'allm[audio]' brings it (ALLM_AUDIO_REPLICAS=0 says that none is wanted)"
)


def with_installed(settings: Settings, say: Callable[[str], None]) -> Settings:
    """The settings without the services whose packages are not there, which is said."""
    if not settings.audio_replicas or all(map(importlib.util.find_spec, AUDIO_PACKAGES)):  # imports nothing
        return settings
    say(NO_AUDIO)
    return replace(settings, audio_replicas=0)
