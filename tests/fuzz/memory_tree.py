"""A model's files in memory, so that a case needs no disk."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import BinaryIO

from services.models.manifest import ManifestFile


class MemoryTree:
    """A listing for the inspection (`services.models.hub.source.FileTree`)."""

    repository = ""
    revision = ""
    folder = "/fuzzed"

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = contents
        self.files: Mapping[str, ManifestFile] = {
            path: ManifestFile(path=path, size=len(data)) for path, data in sorted(contents.items())
        }

    def open(self, path: str) -> BinaryIO:
        """Opens one of the files."""
        return io.BytesIO(self._contents[path])
