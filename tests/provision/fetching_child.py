"""Fetches a model in a process that tests may kill: `python -m tests.provision.fetching_child MODELS_DIR MANIFEST`.

Prints a line for every progress report, and the folder at the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from services.models.manifest import Manifest, ManifestFile
from services.provision.fetch import FetchProgress, fetch
from services.provision.model_cache import ModelCache


def written(manifest: Manifest) -> str:
    """Encodes the manifest as a command-line argument."""
    return json.dumps(asdict(manifest))


def print_progress(progress: FetchProgress) -> None:
    """Prints the progress as a line."""
    print(progress.stage, progress.done, progress.total, flush=True)


if __name__ == "__main__":
    fields = json.loads(sys.argv[2])
    files = tuple(ManifestFile(**file) for file in fields.pop("files"))
    print(
        asyncio.run(fetch(ModelCache(Path(sys.argv[1])), "m", Manifest(files=files, **fields), print_progress)),
        flush=True,
    )
