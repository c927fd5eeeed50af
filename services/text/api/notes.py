"""Limits on the metadata that callers attach to a response. It is returned unchanged and has no other effect."""

from __future__ import annotations

from collections.abc import Mapping

from services.errors import InvalidRequest

MAX_PAIRS = 16
MAX_KEY = 64
MAX_VALUE = 512


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raises InvalidRequest if there are too many pairs or a key or value is too long."""
    if len(metadata) > MAX_PAIRS:
        message = f"'metadata' has {len(metadata)} pairs; at most {MAX_PAIRS} are allowed."
        raise InvalidRequest(message, param="metadata")
    if any(len(key) > MAX_KEY or len(value) > MAX_VALUE for key, value in metadata.items()):
        message = f"'metadata' may have keys of {MAX_KEY} characters and values of {MAX_VALUE}."
        raise InvalidRequest(message, param="metadata")
