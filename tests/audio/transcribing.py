"""The core of the audio service on real weights: store, manager, decoders and transcriptions, without a network API."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import jiwer

from services.audio.engine.messages import Segment
from services.audio.manager import AudioManager, AudioModels, LoadedWhisper
from services.audio.sound.decoders import SoundDecoders
from services.audio.sound.source import RawSound, SoundSource, Upload
from services.audio.transcription import Event, TranscriptionRequest, Transcriptions
from services.models.descriptor import describe
from services.models.desired import DesiredModel
from services.models.formats.inspect import inspect
from services.models.hub.source import LocalTree
from services.models.runtime_choice import EngineRegistry
from services.models.store import ModelStore, ServedGeneration, StoredModel
from services.settings.settings import load_settings

PATIENCE_SECONDS = 120.0
LIMIT_BYTES = 1024**3
MAY_DIFFER = 0.35  # share of the words: these tests do not measure accuracy


@dataclass(frozen=True)
class Audio:
    """The running core, with helpers for tests."""

    folder: Path
    manager: AudioManager
    models: AudioModels
    transcriptions: Transcriptions

    @property
    def residents(self) -> list[LoadedWhisper]:
        """Lists the loaded models."""
        return [resident for _, resident in self.manager.residents()]

    @contextmanager
    def upload(self, content: bytes | Path) -> Iterable[Upload]:
        """Stores a file as an upload."""
        data = content.read_bytes() if isinstance(content, Path) else content
        with Upload(self.folder, LIMIT_BYTES) as upload:
            upload.write(data)
            yield upload

    @asynccontextmanager
    async def transcribing(
        self, request: TranscriptionRequest, source: SoundSource, raw: RawSound | None = None, client: str = "me"
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Finds the model and runs a request, as the servicers do."""
        stored = await self.models.find(request.model)
        async with self.transcriptions.transcribe(stored, request, source, raw, client) as events:
            yield events

    async def events(
        self, request: TranscriptionRequest, source: SoundSource, raw: RawSound | None = None, client: str = "me"
    ) -> list[Event]:
        """Returns all events of a request."""
        async with self.transcribing(request, source, raw, client) as events:
            return [event async for event in events]

    async def file(self, path: Path, **changes: object) -> list[Event]:
        """Returns all events of a file with the first model."""
        with self.upload(path) as upload:
            return await self.events(asked(**changes), upload)


def asked(model: str = "tiny", **changes: object) -> TranscriptionRequest:
    """Builds a request with greedy decoding: these tests do not measure accuracy."""
    return TranscriptionRequest(**{"model": model, "beam_size": 1} | changes)  # type: ignore[arg-type]


@asynccontextmanager
async def transcribing(folder: Path, models: dict[str, Path], **environ: str) -> AsyncIterator[Audio]:
    """Runs the core with models: id -> folder or checkpoint."""
    threads = min(2, len(os.sched_getaffinity(0)))
    settings = load_settings({"ALLM_HOME": str(folder), "ALLM_THREADS": str(threads)} | environ).audio
    store, registry = ModelStore("me"), EngineRegistry("cpu", forced=True)
    for model_id, path in models.items():
        store.put(stored(model_id, path, registry))
    manager = AudioManager(settings)
    decoders = SoundDecoders(
        decoders=settings.decoders,
        folder=settings.upload_folder,
        max_seconds=settings.max_audio_seconds,
        queue=settings.queue_limit,
        stall_seconds=settings.stall_seconds,
        spare=1,
    )
    await decoders.start()
    try:
        models = AudioModels(store, manager)
        yield Audio(settings.upload_folder, manager, models, Transcriptions(models, decoders, settings))
    finally:
        await manager.close()
        await decoders.close()


def stored(model_id: str, path: Path, registry: EngineRegistry) -> StoredModel:
    """Describes a model as the provisioner would store it, found by the same inspection."""
    folder, file = (path, "") if path.is_dir() else (path.parent, path.name)
    tree = LocalTree(folder, [folder])
    finding = inspect(tree, "whisper", file)
    manifest, facts = finding.manifest(tree), finding.facts(model_id)
    desired = DesiredModel(
        facts=facts, aliases=(), source=f"file://{path}", generation=1, manifest=manifest, created=1, updated=1
    )
    serving = ServedGeneration(descriptor=describe(facts, 1, manifest, folder), runtime=registry.resolve(facts))
    return StoredModel(desired=desired, serving=serving, problem=None)


def text(events: Iterable[Event]) -> str:
    """Returns the text of all segments."""
    return "".join(event.text for event in events if isinstance(event, Segment))


def words(said: str) -> list[str]:
    """Splits a text into words, ignoring case and punctuation."""
    return re.findall(r"[a-z0-9]+", said.lower().replace("'", ""))


def word_errors(said: str, expected: str) -> float:
    """Returns the word error rate."""
    return float(jiwer.wer(" ".join(words(expected)), " ".join(words(said))))
