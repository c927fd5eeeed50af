"""`python -m release.version`: prints the version of pyproject.toml, the only place that declares it."""

from __future__ import annotations

import tomllib
from pathlib import Path


def version(source: Path) -> str:
    """Returns the version of the project in a folder."""
    with (source / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


if __name__ == "__main__":
    print(version(Path(__file__).parents[1]))
