"""`allm models add` and `update`: the requests to the catalog, and the wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from tests.cli.models.catalog_stand_in import (
    LONG,
    MIB,
    Break,
    CatalogStandIn,
    Commands,
    Refusal,
    desired,
    replica,
    running,
    wait_for,
)
from tests.stack import environment

HUB = "hf://org/m@main#m.gguf"


def fetching(done: int, total: int = 138 * MIB) -> object:
    return desired("m", "downloading", replicas=[replica("downloading", done_bytes=done, total_bytes=total)])


def test_it_waits_until_the_model_is_ready(models: Commands) -> None:
    models.catalog.story = [
        desired("m", "pending"),
        fetching(1 * MIB),
        desired("m", "verifying", replicas=[replica("verifying")]),
        desired("m", "ready", replicas=[replica("ready")]),
    ]
    done = models("add", "m", HUB, "--format", "gguf", "--alias", "gpt-4o", "--alias", "b", "--modality", "text")
    assert done.status == 0
    assert done.stdout == "m is ready (llama_cpp on cpu)\n"
    assert "m: downloading: 1.0 MiB of 138 MiB (0%)" in done.stderr
    assert "m: verifying" in done.stderr
    (request,) = models.catalog.requests("RegisterModel")
    assert (request.id, request.source, request.format, request.modality) == ("m", HUB, "gguf", "text")
    assert list(request.aliases) == ["gpt-4o", "b"]


@pytest.mark.parametrize(
    "source", ["org/M-GGUF", "org/M-GGUF:Q8_0", "https://huggingface.co/org/M-GGUF", "hf.co/org/M"]
)
def test_a_short_source_is_found_and_shown_before_it_is_registered(models: Commands, source: str) -> None:
    models.catalog.story = [desired("found", "ready", replicas=[replica("ready")])]
    done = models("add", source)
    assert (done.status, done.stdout) == (0, "found is ready (llama_cpp on cpu)\n")
    assert done.stderr.startswith("found: hf://org/M-GGUF#M-Q8_0.gguf (gguf)\nfound is registered")
    assert [request.source for request in models.catalog.requests("FindSource")] == [source]
    (request,) = models.catalog.requests("RegisterModel")
    assert (request.id, request.source, request.format) == ("found", "hf://org/M-GGUF#M-Q8_0.gguf", "gguf")


def test_an_id_and_a_format_that_are_given_count(models: Commands, tmp_path: Path) -> None:
    models("add", "m", "org/M-GGUF", "--format", "GGUF", "--no-wait")
    models("add", "n", HUB, "--no-wait")
    (file := tmp_path / "m.gguf").touch()
    models("add", "o", str(file), "--no-wait")
    assert [request.source for request in models.catalog.requests("FindSource")] == ["org/M-GGUF", HUB, file.as_uri()]
    assert [request.id for request in models.catalog.requests("RegisterModel")] == ["m", "n", "o"]
    three = models("add", "a", "b", "c")
    assert (three.status, three.stderr) == (1, "allm: 3 arguments are given; there may be two: [ID] SOURCE\n")


def test_without_a_terminal_a_download_prints_occasional_lines(models: Commands) -> None:
    models.catalog.story = [*(fetching(done) for done in range(0, 138 * MIB, MIB // 4)), desired("m")]
    done = models("add", "m", HUB, "--format", "gguf")
    assert done.status == 0
    assert 1 <= done.stderr.count("downloading") < 20


def test_without_waiting_it_only_registers(models: Commands) -> None:
    done = models("add", "m", HUB, "--format", "gguf", "--no-wait")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout == "m is registered (138 MiB, llama)\n"
    assert not models.catalog.requests("WatchModels")


@pytest.mark.parametrize("state", ["failed", "unsupported"])
def test_a_model_that_will_not_serve_ends_it_with_the_reason(models: Commands, state: str) -> None:
    models.catalog.story = [desired("m", state, reason="m.gguf has 12 bytes, expected 13")]
    done = models("add", "m", HUB, "--format", "gguf")
    assert done.status == 1
    assert done.stdout == ""
    assert f"allm: m is {state}: m.gguf has 12 bytes, expected 13\n" in done.stderr


def test_json_is_the_final_model_also_of_a_failed_one(models: Commands) -> None:
    models.catalog.story = [fetching(MIB), desired("m", replicas=[replica("ready")])]
    done = models("add", "m", HUB, "--format", "gguf", "--json")
    assert done.status == 0
    assert (done.json["id"], done.json["state"], done.json["format"]) == ("m", "ready", "gguf")
    assert done.json["size_bytes"] == 138 * MIB
    assert done.json["replicas"][0]["state"] == "ready"
    models.catalog.models.clear()
    models.catalog.story = [desired("m", "failed", reason="no such file")]
    failed = models("add", "m", HUB, "--format", "gguf", "--json")
    assert failed.status == 1
    assert (failed.json["state"], failed.json["reason"]) == ("failed", "no such file")


def test_a_replica_that_fails_is_no_reason_to_give_up_while_another_goes_on(models: Commands) -> None:
    broken = replica("failed", "text-1", reason="disk full")
    models.catalog.story = [
        desired("m", "downloading", replicas=[broken, replica("downloading", "text-2")]),
        desired("m", "ready", replicas=[broken, replica("ready", "text-2")]),
    ]
    assert models("add", "m", HUB, "--format", "gguf").status == 0


def test_refusals_of_the_catalog_are_passed_on_unchanged(models: Commands) -> None:
    models.catalog.refuse["RegisterModel"] = Refusal(grpc.StatusCode.ALREADY_EXISTS, "the id 'm' is taken by m")
    done = models("add", "m", HUB, "--format", "gguf")
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr == "allm: the id 'm' is taken by m\n"


def test_a_path_becomes_a_url(models: Commands, tmp_path: Path) -> None:
    file = tmp_path / "a model #1.gguf"
    file.touch()
    done = models("add", "m", str(file), "--format", "gguf", "--no-wait")
    assert done.status == 0
    (request,) = models.catalog.requests("RegisterModel")
    assert request.source == file.as_uri()
    assert " " not in request.source


def test_a_path_that_leads_nowhere_is_no_source(models: Commands) -> None:
    done = models("add", "m", "./org/name", "--format", "gguf")
    assert done.status == 1
    assert "hf://" in done.stderr
    assert not models.catalog.calls


def test_a_format_must_be_known(models: Commands) -> None:
    assert models("add", "m", HUB, "--format", "onnx").status == 2
    assert not models.catalog.calls


def test_a_catalog_that_is_killed_meanwhile_is_waited_for(models: Commands) -> None:
    models.catalog.story = [fetching(MIB), Break(), desired("m", replicas=[replica("ready")])]
    done = models("add", "m", HUB, "--format", "gguf")
    assert done.status == 0
    assert len(models.catalog.requests("WatchModels")) == 2


def test_a_model_that_is_removed_meanwhile_ends_it(models: Commands) -> None:
    models.catalog.story = ["m"]
    done = models("add", "m", HUB, "--format", "gguf")
    assert done.status == 1
    assert "allm: m was removed\n" in done.stderr


def test_a_timeout_ends_the_wait_only(models: Commands) -> None:
    done = models("add", "m", HUB, "--format", "gguf", "--timeout", "0.2")
    assert done.status == 1
    assert "after 0.2 seconds; allm continues" in done.stderr
    assert "m" in models.catalog.models


def test_ctrl_c_ends_the_wait_only(tmp_path: Path) -> None:
    catalog = CatalogStandIn()
    program = "import sys; from services.cli.models.app import models_app; models_app()"
    with running(catalog) as address:
        command = [sys.executable, "-c", program, "add", "m", HUB, "--format", "gguf", "--address", address]
        with subprocess.Popen(
            command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            wait_for(catalog.told_all.is_set)
            assert process.stderr is not None
            assert process.stderr.readline() == "m is registered (138 MiB, llama)\n"
            assert process.stderr.readline() == "m: pending\n"
            os.kill(process.pid, signal.SIGINT)
            stdout, stderr = process.communicate(timeout=LONG)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == "allm: no longer waiting for m; allm continues; `allm models show m` shows the progress\n"


# --- update


def test_update_waits_for_the_new_generation_not_for_the_old_one(models: Commands) -> None:
    models.catalog.models["m"] = desired("m", replicas=[replica("ready")])
    coming = replica("ready")
    coming.next.generation, coming.next.state = 2, 6
    models.catalog.story = [
        desired("m", generation=2, replicas=[coming]),
        desired("m", generation=2, replicas=[replica("ready", generation=2)]),
    ]
    done = models("update", "m", "hf://org/m@v2", "--alias", "x")
    assert done.status == 0
    assert done.stdout == "m is ready (llama_cpp on cpu)\n"
    assert "m: downloading" in done.stderr
    (request,) = models.catalog.requests("UpdateModel")
    assert (request.source, list(request.aliases.names)) == ("hf://org/m@v2", ["x"])


def test_an_update_that_fails_says_so_though_the_old_one_serves(models: Commands) -> None:
    models.catalog.models["m"] = desired("m", replicas=[replica("ready")])
    stuck = replica("ready")
    stuck.next.generation, stuck.next.state, stuck.next.reason = 2, 3, "m.gguf: wrong hash"
    models.catalog.story = [desired("m", generation=2, replicas=[stuck])]
    done = models("update", "m", "hf://org/m@v2")
    assert done.status == 1
    assert "allm: m is failed: m.gguf: wrong hash" in done.stderr


@pytest.mark.parametrize(("options", "names"), [([], None), (["--no-aliases"], []), (["--alias", "y"], ["y"])])
def test_aliases_stay_unless_something_is_said_of_them(
    models: Commands, options: list[str], names: list[str] | None
) -> None:
    models.catalog.models["m"] = desired("m")
    done = models("update", "m", *options)
    assert done.status == 0
    assert done.stdout == "m is updated: its files stay as they are\n"
    (request,) = models.catalog.requests("UpdateModel")
    assert (list(request.aliases.names) if request.HasField("aliases") else None) == names
    assert not models.catalog.requests("WatchModels"), "there is nothing to wait for"


def test_aliases_cannot_be_given_and_taken_away(models: Commands) -> None:
    models.catalog.models["m"] = desired("m")
    assert models("update", "m", "--alias", "y", "--no-aliases").status == 1
    assert not models.catalog.requests("UpdateModel")
