"""Sources as operators write them in a shell: also as plain paths."""

from __future__ import annotations

from pathlib import Path

from services.cli.problem import Problem


def source_url(text: str) -> str:
    """A source as the catalog reads it; a path of this machine becomes a URL. Raises Problem if there is nothing."""
    if "://" in text:
        return text
    try:
        path = Path(text).expanduser()
        if path.exists():
            return path.absolute().as_uri()
    except (OSError, RuntimeError, ValueError) as error:
        raise Problem(f"{text} cannot be looked at: {error}") from error
    raise Problem(f"{text} is no file or folder here; a repository of the hub is written hf://org/name")
