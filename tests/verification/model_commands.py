"""`allm models` for tests, on a running stack."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from services.cli.models.app import models_app
from tests.stack import Stack

# If set, results are kept there; `python -m bench.verified FOLDER/*.json` makes docs/verified-models.md from them.
RECORD = Path(os.environ["RECORD_VERIFIED"]) if "RECORD_VERIFIED" in os.environ else None


@dataclass(frozen=True)
class Done:
    """The result of a finished command."""

    status: int
    stdout: str
    stderr: str

    @property
    def checks(self) -> dict[str, dict[str, Any]]:
        """Returns the checks of `test --json`, by name."""
        return {each["name"]: each for each in json.loads(self.stdout)["checks"]}


class ModelCommands:
    """The model commands, and a folder for files that may be registered."""

    def __init__(self, stack: Stack) -> None:
        self._home = stack.home
        self.root = stack.home / "models" / "verification"

    def __call__(self, *arguments: str | Path) -> Done:
        """Runs one command, without the machine's own settings."""
        environment = {"ALLM_HOME": str(self._home)}
        ended = CliRunner().invoke(models_app, [str(each) for each in arguments], env=environment)
        return Done(ended.exit_code, ended.stdout, ended.stderr)

    def add(self, name: str, path: Path, format: str) -> None:
        """Registers a model and waits until it is ready."""
        done = self("add", name, path, "--format", format)
        assert done.status == 0, done.stderr


def link_folder(source: Path, target: Path) -> Path:
    """Hard-links the files of a folder into another one; copies them across file systems."""
    target.mkdir()
    for path in source.iterdir():
        try:
            (target / path.name).hardlink_to(path)
        except OSError:  # another file system
            shutil.copyfile(path, target / path.name)
    return target
