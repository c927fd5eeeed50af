"""The fixture for `allm models` on the running stack, with models from the stack's own folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from tests.stack import Stack
from tests.verification.model_commands import ModelCommands


@pytest.fixture
def models(stack: Stack) -> Iterator[ModelCommands]:
    """Yields the commands; removes the models of the test and their files afterwards."""
    models = ModelCommands(stack)
    models.root.mkdir(parents=True, exist_ok=True)
    listed = json.loads(models("list", "--json").stdout)["models"]
    yield models
    before = {each["id"] for each in listed}
    for each in json.loads(models("list", "--json").stdout)["models"]:
        if each["id"] not in before:
            models("remove", each["id"], "--yes")
    shutil.rmtree(models.root)
