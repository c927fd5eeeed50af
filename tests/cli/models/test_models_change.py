"""`allm models remove`, `load` and `unload`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.models.catalog_stand_in import LONG, CatalogStandIn, Commands, desired, replica, running
from tests.stack import environment


def test_remove_asks_first_and_refuses_without_a_terminal(models: Commands) -> None:
    models.catalog.models = {"m": desired("m", aliases=["x"])}
    refused = models("remove", "m")
    assert refused.status == 1
    assert "--yes" in refused.stderr
    assert "m" in models.catalog.models
    done = models("remove", "x", "--yes")
    assert (done.status, done.stdout) == (0, "m is removed\n")
    assert not models.catalog.models


def test_remove_for_scripts(models: Commands) -> None:
    models.catalog.models = {"m": desired("m")}
    assert models("remove", "m", "--yes", "--json").json == {"removed": "m"}


def test_on_a_terminal_the_answer_counts(tmp_path: Path) -> None:
    catalog = CatalogStandIn(desired("m"))
    program = "from services.cli.models.app import models_app; models_app()"
    with running(catalog) as address:
        for answer, status in ((b"n\n", 1), (b"y\n", 0)):
            ours, theirs = os.openpty()
            os.write(ours, answer)
            command = [sys.executable, "-c", program, "remove", "m", "--address", address]
            done = subprocess.run(
                command,
                stdin=theirs,
                env=environment(tmp_path),
                capture_output=True,
                text=True,
                check=False,
                timeout=LONG,
            )
            os.close(ours)
            os.close(theirs)
            assert done.returncode == status, done.stderr
            assert "Remove m (138 MiB, its fetched files are deleted)?" in done.stderr
            assert ("m" in catalog.models) == (status == 1)


def test_load_waits_for_the_runtime_that_was_asked_for(models: Commands) -> None:
    models.catalog.models = {"m": desired("m", "loaded", replicas=[replica("loaded")])}
    models.catalog.story = [
        desired("m", "ready", replicas=[replica("ready", runtime="other")]),
        desired("m", "loaded", replicas=[replica("loaded", runtime="other")]),
    ]
    done = models("load", "m", "--runtime", "other")
    assert (done.status, done.stdout) == (0, "m is loaded (other on cpu)\n")
    (request,) = models.catalog.requests("LoadModel")
    assert (request.id, request.runtime) == ("m", "other")
    assert models.catalog.told_all.is_set() or not models.catalog.story


def test_load_fails_with_the_reason(models: Commands) -> None:
    models.catalog.models = {"m": desired("m")}
    models.catalog.story = [desired("m", "failed", replicas=[replica("failed", reason="needs 9 GiB, 4 GiB are free")])]
    done = models("load", "m")
    assert done.status == 1
    assert "allm: m is failed: needs 9 GiB, 4 GiB are free\n" in done.stderr


def test_load_with_a_runtime_that_cannot_ends_though_another_goes_on(models: Commands) -> None:
    models.catalog.models = {"m": desired("m")}
    still = replica("loaded")
    still.next.generation, still.next.state, still.next.reason = 1, 4, "the runtime 'x' cannot run it here"
    models.catalog.story = [desired("m", "loaded", replicas=[still])]
    done = models("load", "m", "--runtime", "x")
    assert done.status == 1
    assert "allm: m is unsupported: the runtime 'x' cannot run it here\n" in done.stderr


def test_load_and_unload_without_waiting(models: Commands) -> None:
    models.catalog.models = {"m": desired("m")}
    assert models("load", "m", "--no-wait").stdout == "m will be loaded\n"
    assert models("load", "m", "--no-wait", "--json").json["keep_loaded"] is True
    assert models("unload", "m").stdout == "m will be unloaded\n"
    assert models("unload", "m", "--json").json["keep_loaded"] is False
    assert not models.catalog.requests("WatchModels")
