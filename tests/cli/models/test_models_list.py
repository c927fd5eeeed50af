"""`allm models list`, `show` and `why`: for people and for scripts."""

from __future__ import annotations

import grpc
from allm.models.v1 import manifest_pb2, model_pb2
from allm.models.v1 import model_service_pb2 as pb

from tests.cli.models.catalog_stand_in import MIB, Break, Commands, Refusal, desired, replica

LONG_REASON = "m.gguf is truncated: " + "bytes " * 60


def test_a_line_for_each_model(models: Commands) -> None:
    ready = desired("a/ready", replicas=[replica("ready", "text-1"), replica("pending", "text-2")], aliases=["x", "y"])
    coming = desired(
        "coming", "downloading", replicas=[replica("downloading", done_bytes=30 * MIB, total_bytes=120 * MIB)]
    )
    broken = desired("failed", "failed", reason=LONG_REASON)
    models.catalog.models = {each.model.id: each for each in (ready, coming, broken)}
    done = models("list")
    assert (done.status, done.stderr) == (0, "")
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["ID", "STATE", "FORMAT", "SIZE", "RUNTIME", "REPLICAS", "ALIASES", "DETAIL"]
    assert lines[0].split() == ["a/ready", "ready", "gguf", "138", "MiB", "llama_cpp", "1/2", "x,", "y"]
    assert lines[1].endswith("25% of 120 MiB")
    assert lines[2].endswith(LONG_REASON.strip()), "what is piped is whole"
    assert len({line.index("gguf") for line in lines}) == 1, "columns are aligned"


def test_unapplied_entries_of_the_models_file_are_listed_below(models: Commands) -> None:
    models.catalog.models_file = pb.ModelsFile(path="/etc/models.yaml")
    done = models("list")
    assert (done.status, done.stderr) == (0, ""), "all of it is"
    models.catalog.models_file.problems.add(line=7, key="models[1].source", model="m", message="there is no such file")
    models.catalog.models_file.problems.add(message="it has 2 MiB, and may have 1")
    done = models("list")
    assert done.status == 0
    assert done.stderr.splitlines() == [
        "/etc/models.yaml:7: models[1].source: there is no such file",
        "/etc/models.yaml: it has 2 MiB, and may have 1",
    ]
    assert models("list", "--json").json["models_file"]["problems"][0]["line"] == 7


def test_no_models_yet(models: Commands) -> None:
    assert "`allm pull ORG/NAME`" in models("list").stdout
    assert models("list", "--json").json == {"models": []}


def test_the_list_for_scripts(models: Commands) -> None:
    models.catalog.models = {"m": desired("m", replicas=[replica("loaded", peak_memory_bytes=5)])}
    (model,) = models("list", "--json").json["models"]
    assert (model["id"], model["state"], model["format"], model["modality"]) == ("m", "ready", "gguf", "text")
    assert model["size_bytes"] == 138 * MIB
    assert model["replicas"][0]["state"] == "loaded"
    assert model["replicas"][0]["peak_memory_bytes"] == 5
    assert model["aliases"] == []


def test_nothing_that_a_terminal_would_obey_is_printed(models: Commands) -> None:
    models.catalog.models = {"m": desired("m", "failed", reason="bad \x1b[2J\x07 name\r\nof [bold]a[/bold] file")}
    for command in (("list",), ("show", "m")):
        shown = models(*command).stdout
        assert "bad [2J name of [bold]a[/bold] file" in shown
        assert not set("\x1b\x07\r") & set(shown)


def test_show_prints_all_fields(models: Commands) -> None:
    serving = replica("loaded", "text-1", peak_memory_bytes=200 * MIB, artifact="openai/m-fast@v1")
    serving.next.generation, serving.next.state, serving.next.reason = 2, 3, "wrong hash of m.gguf"
    benchmark = model_pb2.Benchmark(
        runtime="llama_cpp", device="cpu", tokens_per_second=61.25, first_token_seconds=0.05
    )
    shown = desired("m", "loaded", replicas=[serving], benchmarks=[benchmark], aliases=["x"], keep_loaded=True)
    files = [manifest_pb2.ManifestFile(path=f"part-{at}", size_bytes=at) for at in range(25)]
    shown.manifest.files.extend(files)
    models.catalog.models = {"m": shown}
    text = models("show", "x").stdout
    for part in ("hf://org/m#m.gguf", "c0ffee", "2,048 tokens", "llama", "text-1", "200 MiB", "openai/m-fast@v1"):
        assert part in text
    assert "generation 2 failed: wrong hash of m.gguf" in text
    assert "61.2" in text
    assert "50 ms" in text
    assert "m.gguf (opened)" in text
    assert "part-18" in text
    assert "part-19" not in text
    assert "and 6 more; --files shows all" in text
    assert "part-24" in models("show", "m", "--files").stdout
    found = models("show", "m", "--json").json
    assert len(found["manifest"]["files"]) == 26
    assert found["model"]["replicas"][0]["next"] == {
        "generation": 2,
        "state": "failed",
        "reason": "wrong hash of m.gguf",
    }


def test_an_unknown_model_is_an_error_with_the_catalogs_words(models: Commands) -> None:
    for command in (("show",), ("why",), ("load",), ("unload",), ("check",), ("bench",), ("remove", "--yes")):
        done = models(*command, "nobody")
        assert (done.status, done.stdout, done.stderr) == (1, "", "allm: there is no model 'nobody'\n"), command


def test_why_explains_each_replica(models: Commands) -> None:
    models.catalog.models = {"m": desired("m")}
    verdict = pb.RuntimeVerdict
    models.catalog.resolutions = [
        pb.Resolution(
            replica="text-1",
            device="cpu",
            runtimes=[
                verdict(runtime="llama_cpp", chosen=True, able=True, reason="the first registered that can run it"),
                verdict(runtime="slow", able=True, reason="it could run it; another is preferred"),
                verdict(runtime="torch", reason="it does not read text models in gguf"),
            ],
        ),
        pb.Resolution(replica="text-2", device="cuda", runtimes=[verdict(runtime="torch", reason="no")]),
    ]
    text = models("why", "m").stdout
    assert text.startswith("m is ready.\n")
    assert "It uses llama_cpp: the first registered that can run it." in text
    assert "It does not use slow: it could run it; another is preferred." in text
    assert "torch cannot run it: it does not read text models in gguf." in text
    assert "It uses none of them." in text
    found = models("why", "m", "--json").json
    assert found["resolutions"][0]["runtimes"][0]["chosen"] is True


def test_the_models_own_files_are_shown_while_a_cache_serves(models: Commands) -> None:
    state = model_pb2.MODEL_STATE_DOWNLOADING
    fetching = model_pb2.CanonicalFiles(state=state, done_bytes=MIB, total_bytes=4 * MIB)
    whole = model_pb2.CanonicalFiles(state=model_pb2.MODEL_STATE_READY, done_bytes=4 * MIB, total_bytes=4 * MIB)
    replicas = [
        replica("ready", "text-1", artifact="openai/m@v1", canonical=fetching),
        replica("ready", "text-2", artifact="openai/m@v1", canonical=whole),
        replica("ready", "text-3", artifact="openai/m@v1"),
    ]
    models.catalog.models = {"m": desired("m", replicas=replicas)}
    runtimes = [pb.RuntimeVerdict(runtime="llama_cpp", chosen=True, able=True, reason="a cache fits")]
    models.catalog.resolutions = [
        pb.Resolution(replica=name, device="cpu", runtimes=runtimes) for name in ("text-1", "text-2", "text-3")
    ]
    text = models("why", "m").stdout
    assert "It also keeps the model's own files: downloading: 25% of 4.0 MiB." in text
    assert "It also keeps the model's own files: complete, 4.0 MiB." in text
    assert "It does not keep the model's own files: they are local, or ALLM_KEEP_CANONICAL is off." in text
    assert "own files downloading: 25% of 4.0 MiB" in models("show", "m").stdout


def test_why_without_a_service_states_it(models: Commands) -> None:
    models.catalog.models = {"m": desired("m", "pending", reason="no text service is running")}
    text = models("why", "m").stdout
    assert "m is pending: no text service is running." in text
    assert "No service for text models is running" in text


def test_a_catalog_that_is_down_behind_the_gateway(models: Commands) -> None:
    models.catalog.refuse["ListModels"] = Break()
    done = models("list")
    assert done.status == 1
    assert done.stderr.startswith("allm: the service does not answer at the moment (no healthy upstream)")


def test_error_of_the_catalog_is_passed_on_unchanged(models: Commands) -> None:
    models.catalog.refuse["ListModels"] = Refusal(grpc.StatusCode.UNAVAILABLE, "the catalog is just starting")
    assert models("list").stderr == "allm: the catalog is just starting\n"


def test_download_is_shown_in_bytes_and_a_reason_without_the_name(models: Commands) -> None:
    coming = replica("downloading", done_bytes=69 * MIB, total_bytes=138 * MIB)
    waiting = replica("downloading", total_bytes=138 * MIB, reason="the hub is busy")
    models.catalog.models = {
        "a": desired("a", "downloading", reason="a is downloading: 50 % done", replicas=[coming]),
        "b": desired("b", "downloading", reason="b is downloading: 0 % done", replicas=[waiting]),
        "c": desired("c", "unsupported", reason="c: no runtime here reads it"),
    }
    rows = {line.split()[0]: line for line in models("list").stdout.splitlines()}
    assert rows["a"].endswith("  50% of 138 MiB")
    assert rows["b"].endswith("  the hub is busy")
    assert rows["c"].endswith("  no runtime here reads it")
