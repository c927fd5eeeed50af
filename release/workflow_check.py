"""Checks .github: the workflows against GitHub's schema, their security with zizmor, their commands with shellcheck."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML

FOLDER = Path(__file__).parents[1] / ".github" / "workflows"
BIN = Path(sys.executable).parent


def main() -> None:
    """Prints what the tools find; the exit status is 1 if they find anything."""
    workflows = sorted(FOLDER.glob("*.yml"))
    found = [
        _failed("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, workflows)),
        _failed("zizmor", "--offline", "--no-progress", "--quiet", *map(str, workflows)),
        *(_failed("shellcheck", "--shell", "bash", "-", script=each) for file in workflows for each in scripts(file)),
    ]
    sys.exit(any(found))


def scripts(file: Path) -> Iterator[str]:
    """Yields the commands of a workflow's steps, as the shell gets them."""
    for job in YAML(typ="safe").load(file)["jobs"].values():
        yield from (f"set -eo pipefail\n{step['run']}" for step in job["steps"] if "run" in step)


def _failed(tool: str, *arguments: str, script: str = "") -> bool:
    return subprocess.run([str(BIN / tool), *arguments], input=script, text=True, check=False).returncode != 0


if __name__ == "__main__":
    main()
