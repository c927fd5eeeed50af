"""AudioManager: the audio models of this process."""

from __future__ import annotations

from services.audio.loaded import LoadedWhisper
from services.audio.whisper_manager import WhisperManager
from services.residency.manager import ModelManager
from services.settings.settings import AudioSettings


class AudioManager(ModelManager[LoadedWhisper]):
    """Leases audio models and loads them on first use. How a model of a family is started is the family's own matter:
    Whisper's is the only one so far, and another would stand beside it.
    """

    def __init__(self, settings: AudioSettings, device: str) -> None:
        """`device` is where models run: cuda, mps or cpu."""
        family = WhisperManager(settings, device)
        super().__init__(family.start)
        self.options = family.options  # how a model is run here
