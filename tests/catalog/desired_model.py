"""Registered models without files."""

from __future__ import annotations

from typing import Any

from services.models.descriptor import ModelFacts
from services.models.desired import Artifact, DesiredModel
from services.models.manifest import Manifest, ManifestFile
from services.models.runtime_choice import Measurement

MEASURED = Measurement(
    runtime="llama_cpp", device="cpu", tokens_per_second=12.5, first_token_seconds=0.25, peak_memory=1000
)


def facts(model_id: str = "m", **changes: Any) -> ModelFacts:
    """Returns the facts of a small text model in GGUF."""
    plain: dict[str, Any] = {
        "id": model_id,
        "modality": "text",
        "format": "gguf",
        "architecture": "llama",
        "capabilities": frozenset({"chat"}),
        "size": 5,
        "context_tokens": 2048,
    }
    return ModelFacts(**(plain | changes))


def desired(model_id: str, *aliases: str, **changes: Any) -> DesiredModel:
    """Returns a registered model."""
    plain: dict[str, Any] = {
        "facts": facts(model_id),
        "aliases": aliases,
        "source": f"file:///files/{model_id}.gguf",
        "generation": 1,
        "manifest": Manifest(
            files=(ManifestFile(path="m.gguf", size=5, sha256="a" * 64),), primary="m.gguf", folder="/files"
        ),
        "created": 1_700_000_000,
        "updated": 1_700_000_000,
    }
    return DesiredModel(**(plain | changes))


ARTIFACT = Artifact(
    runtime="llama_cpp",
    devices=frozenset({"cpu", "cuda"}),
    facts=facts(),
    manifest=Manifest(
        files=(ManifestFile(path="q/m.gguf", size=3),), primary="q/m.gguf", repository="nvidia/m", revision="c0ffee"
    ),
)
