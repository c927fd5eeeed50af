"""Sources as operators type them in a shell, plain paths included."""

from __future__ import annotations

from pathlib import Path

from services.cli.problem import Problem


def source_url(text: str) -> str:
    """Converts a source for the catalog: a local path becomes a URL. Raises Problem if the path does not exist."""
    if "://" in text:
        return text
    try:
        path = Path(text).expanduser()
        if path.exists():
            return path.absolute().as_uri()
    except (OSError, RuntimeError, ValueError) as error:
        raise Problem(f"{text} cannot be looked at: {error}") from error
    raise Problem(f"{text} is no file or folder here; a repository of the hub is written hf://org/name")
