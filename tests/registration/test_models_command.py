"""`allm models` as an operator runs it: child processes on a whole stack, with real files and a hub on loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.models.demo.text_demo import bundled_model
from tests.demo_model import demo_model, demo_safetensors
from tests.loopback_hub import LISTING, LoopbackHub
from tests.operator_side import PATIENCE_SECONDS, Operator
from tests.registration.model_folders import ctranslate2_whisper, evil_checkpoint, safetensors_model, write_json
from tests.stack import MODEL, POLL_SECONDS, environment

pytestmark = pytest.mark.slow

WEIGHTS = "demo.gguf"
HEADERS = 8 * 1024 * 1024  # bytes: the reads of a registration are smaller


@dataclass(frozen=True)
class Done:
    """The result of a finished command."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


class Command:
    """A running `allm models ...`; its output is read incrementally."""

    def __init__(self, home: Path, *arguments: str, **settings: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "models", *arguments],
            env=environment(home, **settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._readers = [
            threading.Thread(target=lines.extend, args=(stream,), daemon=True)
            for lines, stream in ((self.stdout, self._process.stdout), (self.stderr, self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def until_told(self, words: str) -> None:
        """Waits until its standard error contains `words`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while words not in "".join(self.stderr):
            assert self._process.poll() is None, (self.stdout, self.stderr)
            assert time.monotonic() < deadline, (self.stdout, self.stderr)
            time.sleep(POLL_SECONDS)

    def done(self) -> Done:
        """Waits for the command to end; returns its result."""
        try:
            status = self._process.wait(PATIENCE_SECONDS)
        finally:
            self._process.kill()
        for reader, stream in zip(self._readers, (self._process.stdout, self._process.stderr), strict=True):
            reader.join()
            if stream:
                stream.close()
        return Done(status, "".join(self.stdout), "".join(self.stderr))


@pytest.fixture
def models(operator: Operator) -> Callable[..., Done]:
    """Returns a function that runs a command with the stack's ALLM_HOME and returns the result."""

    def run(*arguments: str) -> Done:
        done = Command(operator.stack.home, *arguments).done()
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def small(session_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Adds the bundled model to the hub as `org/cli-small`; returns its commit."""
    folder = tmp_path_factory.mktemp("cli-small")
    shutil.copy(_bundled(), folder / WEIGHTS)
    return session_hub.add("org/cli-small", folder)


def _bundled() -> Path:
    source = bundled_model()
    assert source is not None
    return source


def link(path: Path, file: Path | None = None) -> Path:
    """Links the real model, or `file`, to `path`; copies it if a hard link is impossible."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file or demo_model(), path)
    except OSError:
        shutil.copy(file or demo_model(), path)
    return path


def published(operator: Operator, model_id: str) -> list[Path]:
    """Returns the files of a model under ALLM_MODELS_DIR."""
    return [path for path in (operator.stack.home / "models" / model_id).rglob("*") if path.is_file()]


# --- add


def test_add_downloads_shows_progress_and_ends_when_the_model_serves(
    operator: Operator, hub: LoopbackHub, small: str
) -> None:
    gate = hub.gate(WEIGHTS, after_bytes=32 * 1024 * 1024)
    command = Command(operator.stack.home, "add", "m", "org/cli-small", "--alias", "nick")
    command.until_told("m: downloading: ")
    assert "m" not in operator.ready()
    coming = Command(operator.stack.home, "check", "m").done()
    assert (coming.status, coming.stdout) == (0, "m: downloading, no files of the model are fetched here yet\n")
    gate.open()
    done = command.done()
    assert done.status == 0, done
    assert done.stdout == "m is ready (llama_cpp on cpu)\n"
    found, first, *others = done.stderr.splitlines()
    assert found == "m: hf://org/cli-small#demo.gguf (gguf)", "shown before anything is fetched"
    assert first == "m is registered (94 MiB, llama)"
    assert all(re.match(r"m: (pending|downloading|verifying|ready)\b", line) for line in others), done.stderr
    assert any(re.match(r"m: downloading: .+ of 94 MiB \(\d+%\)", line) for line in others), done.stderr
    assert operator.chat("nick").status == 200
    assert operator.all()["m"]["source"] == "hf://org/cli-small#demo.gguf"
    assert small in Command(operator.stack.home, "show", "nick").done().stdout


def test_add_by_address_from_a_home_that_knows_nothing(operator: Operator, folder: Path, tmp_path: Path) -> None:
    path = link(folder / WEIGHTS)
    address = operator.stack.grpc_address
    done = Command(tmp_path, "add", "local", str(path), "--format", "gguf", "--json", "--address", address).done()
    assert done.status == 0, done
    assert (done.json["id"], done.json["state"], done.json["source"]) == ("local", "ready", path.as_uri())
    lost = Command(tmp_path, "list", ALLM_PORT="1").done()
    assert (lost.status, lost.stdout) == (1, "")
    assert "allm serve" in lost.stderr
    assert "--address" in lost.stderr


@pytest.mark.usefixtures("small")
def test_add_of_an_invalid_model_prints_the_catalogs_error_and_leaves_nothing(
    operator: Operator, hub: LoopbackHub, folder: Path, models: Callable[..., Done]
) -> None:
    cut = folder / "cut.gguf"
    with demo_model().open("rb") as whole:
        cut.write_bytes(whole.read(10_000_000))
    safetensors_model(folder / "bare")
    (folder / "bare" / "tokenizer.json").unlink()
    for source, format in (
        (cut.as_uri(), "gguf"),
        ((folder / "bare").as_uri(), "safetensors"),
        ("hf://org/cli-small@nowhere", "gguf"),
        ("hf://org/nothing-at-all", "gguf"),
        ("file:///etc/hostname", "gguf"),
    ):
        words = operator.refused("wrong", source, format)
        done = models("add", "wrong", source, "--format", format)
        assert (done.status, done.stdout, done.stderr) == (1, "", f"allm: {words}\n")
    hub.status(LISTING, 429, times=-1, headers={"retry-after": "7"})
    busy = models("add", "wrong", "hf://org/cli-small", "--format", "gguf")
    assert busy.status == 1
    assert "429" in busy.stderr or "too many" in busy.stderr, busy
    taken = models("add", MODEL, str(link(folder / WEIGHTS)), "--format", "gguf")
    assert taken.status == 1
    assert MODEL in taken.stderr
    assert "registered" in taken.stderr
    assert models("add", "wrong", "no/such/file", "--format", "gguf").status == 1
    assert models("add", "wrong", str(cut), "--format", "onnx").status == 2
    assert "wrong" not in operator.all()


def test_add_of_what_nothing_here_can_run_ends_with_the_reason(
    operator: Operator, folder: Path, models: Callable[..., Done]
) -> None:
    done = models("add", "st", str(safetensors_model(folder / "st")), "--format", "safetensors")
    assert done.status == 1, done
    assert "allm: st is unsupported: architecture 'exotic9000' is not supported by torch\n" in done.stderr
    assert operator.all()["st"]["state"] == "unsupported", "it stays registered"


# --- list, show, why


def test_list_and_show_match_the_registered_models(
    operator: Operator, folder: Path, models: Callable[..., Done]
) -> None:
    path = link(folder / WEIGHTS)
    assert models("add", "org/shown", str(path), "--format", "gguf", "--alias", "nick").status == 0
    assert models("add", "st", str(safetensors_model(folder / "st")), "--format", "safetensors").status == 1
    listed = models("list")
    assert listed.status == 0
    assert listed.stdout.splitlines()[0].split() == [
        "ID", "STATE", "FORMAT", "SIZE", "RUNTIME", "REPLICAS", "ALIASES", "DETAIL"
    ]  # fmt: skip
    rows = {line.split()[0]: line.split() for line in listed.stdout.splitlines()[1:]}
    size = f"{demo_model().stat().st_size / 1024 / 1024:.0f}"
    assert rows["org/shown"][1:] == ["ready", "gguf", size, "MiB", "llama_cpp", "1/1", "nick"]
    assert rows["st"][1:3] == ["unsupported", "safetensors"]
    assert "architecture 'exotic9000' is not supported by torch" in listed.stdout
    documents = {model["id"]: model for model in models("list", "--json").json["models"]}
    assert set(documents) == set(operator.all())
    assert (documents["org/shown"]["state"], documents["st"]["state"]) == ("ready", "unsupported")
    shown = models("show", "nick").stdout
    pairs = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in shown.splitlines() if "  " in line)
    assert (pairs["id"], pairs["format"], pairs["architecture"]) == ("org/shown", "gguf", "llama")
    assert pairs["source"] == path.as_uri()
    assert WEIGHTS in shown
    document = models("show", "nick", "--json").json
    assert document["model"]["size_bytes"] == path.stat().st_size
    assert [file["path"] for file in document["manifest"]["files"]] == [WEIGHTS]
    unknown = models("show", "nobody")
    assert (unknown.status, unknown.stdout) == (1, "")
    assert "nobody" in unknown.stderr


def test_why_explains_each_replica_and_device(operator: Operator, folder: Path, models: Callable[..., Done]) -> None:
    models("add", "m", str(link(folder / WEIGHTS)), "--format", "gguf")
    models("add", "st", str(safetensors_model(folder / "st")), "--format", "safetensors")
    reported = models("why", "m")
    assert reported.status == 0
    assert reported.stdout.splitlines()[0] == "m is ready."
    assert "text (cpu)" in reported.stdout
    assert "It uses llama_cpp: the first registered that can run it; none was measured." in reported.stdout
    document = models("why", "m", "--json").json
    assert document["resolutions"][0]["runtimes"][0]["chosen"] is True
    reported = models("why", "st")
    assert reported.status == 0
    assert "llama_cpp cannot run it: it does not read text models in safetensors." in reported.stdout
    assert "It uses none of them." in reported.stdout


# --- bench


def test_bench_records_what_why_then_names_and_puts_the_model_back(
    operator: Operator, folder: Path, models: Callable[..., Done]
) -> None:
    models("add", "m", str(link(folder / WEIGHTS)), "--format", "gguf")
    done = models("bench", "m", "--rounds", "1", "--tokens", "8", "--prompt-tokens", "16", "--json")
    assert done.status == 0, done
    (measured,) = done.json["benchmarks"]
    assert (done.json["id"], measured["runtime"], measured["device"]) == ("m", "llama_cpp", "cpu")
    assert measured["tokens_per_second"] > 0
    assert measured["first_token_seconds"] > 0
    assert measured["peak_memory_bytes"] > 1024 * 1024
    assert f"{measured['tokens_per_second']:.1f} tokens/s" in models("why", "m").stdout
    (recorded,) = models("show", "m", "--json").json["model"]["benchmarks"]
    assert recorded["tokens_per_second"] == measured["tokens_per_second"]
    assert recorded["record_time"]
    operator.until_state("m", "ready")
    assert models("show", "m", "--json").json["model"]["keep_loaded"] is False
    assert models("load", "m").status == 0
    table = models("bench", "m", "--rounds", "1", "--tokens", "8", "--prompt-tokens", "16")
    assert table.status == 0, table
    assert table.stdout.splitlines()[0].split() == [
        "RECORDED", "RUNTIME", "DEVICE", "TOKENS/S", "FIRST", "TOKEN", "PEAK", "MEMORY"
    ]  # fmt: skip
    kept = models("show", "m", "--json").json["model"]
    assert (kept["keep_loaded"], kept["state"]) == (True, "loaded")
    assert len(kept["benchmarks"]) == 1, "a newer one takes the place of an older one"


def test_a_safetensors_model_is_measured_on_torch(folder: Path, models: Callable[..., Done]) -> None:
    (folder / "measured").mkdir()
    for file in demo_safetensors().iterdir():
        link(folder / "measured" / file.name, file)
    models("add", "measured", str(folder / "measured"), "--format", "safetensors")
    done = models("bench", "measured", "--rounds", "1", "--tokens", "4", "--prompt-tokens", "16", "--json")
    assert done.status == 0, done
    (measured,) = done.json["benchmarks"]
    assert measured["runtime"] == "torch"
    assert measured["tokens_per_second"] > 0
    why = models("why", "measured").stdout
    assert f"It uses torch: the best measured: {measured['tokens_per_second']:.1f} tokens/s." in why


def test_bench_of_what_cannot_run_says_why(folder: Path, models: Callable[..., Done]) -> None:
    models("add", "st", str(safetensors_model(folder / "st")), "--format", "safetensors")
    done = models("bench", "st")
    assert done.status == 1
    assert "llama_cpp: it does not read text models in safetensors" in done.stderr


# --- check


@pytest.mark.usefixtures("small")
def test_check_names_the_file_that_differs_from_its_registration(
    operator: Operator, models: Callable[..., Done]
) -> None:
    assert models("add", "m", "hf://org/cli-small", "--format", "gguf").status == 0
    (file,) = published(operator, "m")
    whole = models("check", "m")
    assert (whole.status, whole.stderr) == (0, "")
    assert whole.stdout == f"m: ok, 1 file, 94 MiB in {file.parent} (1 compared by SHA-256)\n"
    with file.open("r+b") as content:
        content.seek(50_000_000)
        (byte,) = content.read(1)
        content.seek(50_000_000)
        content.write(bytes([byte ^ 1]))
    wrong = models("check")
    assert wrong.status == 1
    assert [line for line in wrong.stdout.splitlines() if line.startswith("m: ") and str(file) in line], wrong
    assert f"{MODEL}: ok" in wrong.stdout, "the others are looked at too"
    quick = models("check", "m", "--quick")
    assert (quick.status, quick.stdout) == (0, f"m: ok, 1 file, 94 MiB in {file.parent} (compared by size)\n")
    size = file.stat().st_size
    os.truncate(file, size - 1)
    for option in ("--quick", "--deep"):
        short = models("check", "m", option, "--json")
        assert short.status == 1
        (report,) = short.json["models"]
        assert report["whole"] is False
        assert report["problems"] == [f"{file} has {size - 1} bytes, expected {size}"]


# --- update, load, unload, remove


def test_update_waits_for_the_new_commit_while_the_old_one_answers(
    operator: Operator, hub: LoopbackHub, models: Callable[..., Done], tmp_path: Path
) -> None:
    shutil.copy(_bundled(), tmp_path / WEIGHTS)
    first = hub.add("org/cli-moving", tmp_path)
    assert models("add", "m", "hf://org/cli-moving", "--format", "gguf").status == 0
    same = models("update", "m")
    assert (same.status, same.stdout) == (0, "m is updated: its files stay as they are\n")
    shutil.copy(demo_model(), tmp_path / WEIGHTS)
    second = hub.add("org/cli-moving", tmp_path)
    gate = hub.gate(WEIGHTS, after_bytes=32 * 1024 * 1024)
    command = Command(operator.stack.home, "update", "m")
    command.until_told("m: downloading: ")
    assert operator.chat("m", max_tokens=2).status == 200
    operator.until_state("m", "loaded")
    detail = models("list").stdout
    assert re.search(r"^m +loaded .*generation 2 downloading", detail, re.MULTILINE), detail
    gate.open()
    done = command.done()
    assert done.status == 0, done
    assert done.stderr.startswith("m is updated: it is now generation 2\n")
    assert re.fullmatch(r"m is (ready|loaded) \(llama_cpp on cpu\)\n", done.stdout), done
    assert "Paris" in operator.answer("m")
    model = models("show", "m", "--json").json["model"]
    assert (model["generation"], model["revision"]) == (2, second)
    assert first != second


def test_an_update_that_fails_says_why_and_the_old_one_serves_on(
    operator: Operator, hub: LoopbackHub, models: Callable[..., Done], tmp_path: Path
) -> None:
    shutil.copy(_bundled(), tmp_path / WEIGHTS)
    hub.add("org/cli-spoilt", tmp_path)
    assert models("add", "m", "hf://org/cli-spoilt", "--format", "gguf").status == 0
    (old,) = published(operator, "m")
    shutil.copy(demo_model(), tmp_path / WEIGHTS)
    hub.add("org/cli-spoilt", tmp_path)
    hub.corrupt(WEIGHTS, times=-1, larger_than=HEADERS)
    done = models("update", "m")
    assert done.status == 1, done
    assert re.search(r"^allm: m is failed: .*demo\.gguf.*SHA-256", done.stderr, re.MULTILINE), done
    assert operator.chat("m", max_tokens=2).status == 200
    assert re.search(r"generation 2 failed: .*demo\.gguf", models("show", "m").stdout)
    assert models("check", "m").status == 0, "what is not here cannot be wrong"
    assert published(operator, "m") == [old]


def test_aliases_are_replaced_or_taken_away(operator: Operator, folder: Path, models: Callable[..., Done]) -> None:
    models("add", "m", str(link(folder / WEIGHTS)), "--format", "gguf", "--alias", "one")
    assert models("update", "m", "--alias", "two", "--alias", "three").status == 0
    assert operator.all()["m"]["aliases"] == ["two", "three"]
    operator.until(lambda: operator.chat("three", max_tokens=1).status == 200)
    assert models("update", "two", "--no-aliases").status == 0
    assert "aliases" not in operator.all()["m"] or operator.all()["m"]["aliases"] == []
    assert models("show", "two").status == 1


def test_load_and_unload(operator: Operator, folder: Path, models: Callable[..., Done]) -> None:
    models("add", "m", str(link(folder / WEIGHTS)), "--format", "gguf")
    done = models("load", "m")
    assert (done.status, done.stdout) == (0, "m is loaded (llama_cpp on cpu)\n"), done
    assert operator.all()["m"]["state"] == "loaded"
    wrong = models("load", "m", "--runtime", "tgi")
    assert wrong.status == 1
    assert "llama_cpp" in wrong.stderr
    missing = models("load", "m", "--runtime", "vllm")
    assert (missing.status, "pip install 'allm-server[vllm]'" in missing.stderr) == (1, True)
    done = models("unload", "m")
    assert (done.status, done.stdout) == (0, "m will be unloaded\n")
    operator.until_state("m", "ready")


@pytest.mark.usefixtures("small")
def test_remove_deletes_downloads_and_keeps_local_files(
    operator: Operator, folder: Path, models: Callable[..., Done]
) -> None:
    path = link(folder / WEIGHTS)
    models("add", "fetched", "hf://org/cli-small", "--format", "gguf")
    models("add", "brought", str(path), "--format", "gguf")
    asked = models("remove", "fetched")
    assert asked.status == 1
    assert "--yes" in asked.stderr
    (file,) = published(operator, "fetched")
    for model_id in ("fetched", "brought"):
        done = models("remove", model_id, "--yes")
        assert (done.status, done.stdout) == (0, f"{model_id} is removed\n")
        assert model_id not in operator.all()
    operator.until(lambda: not file.parent.exists())
    assert path.exists()
    assert models("remove", "fetched", "--yes").status == 1


# --- import


@pytest.fixture
def old(folder: Path) -> Path:
    """Creates the folders of the older system; each metadata.json in them is wrong."""
    old = folder / "old"
    link(old / "tiny-llama" / WEIGHTS)
    safetensors_model(old / "smol-lm")
    ctranslate2_whisper(old / "whisper-tiny")
    link(old / "org" / "nested" / "model.gguf")
    link(old / "loose.BF16.gguf")
    (old / "cut").mkdir()
    with demo_model().open("rb") as whole:
        (old / "cut" / "cut.gguf").write_bytes(whole.read(10_000_000))
    (safetensors_model(old / "no-tokenizer") / "tokenizer.json").unlink()
    link(old / "two" / "a.gguf")
    link(old / "two" / "b.gguf")
    link(safetensors_model(old / "both") / "both.gguf")
    (old / "evil").mkdir()
    evil_checkpoint(old / "evil" / "tiny.pt")
    (old / "nothing").mkdir()
    (old / "readme.txt").write_text("mine")
    lie = {"id": "other", "format": "diffusers", "engine": "safetensors_cpp", "modality": "image", "path": "/etc"}
    for name in ("tiny-llama", "smol-lm", "whisper-tiny", "nothing"):
        write_json(old / name / "metadata.json", lie)
    return old


def test_import_takes_what_the_older_system_left_line_by_line(
    operator: Operator, old: Path, models: Callable[..., Done]
) -> None:
    def files() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in old.rglob("*")}

    before = files()
    dry = models("import", str(old), "--dry-run", "--json")
    assert dry.status == 0, dry
    assert not {"tiny-llama", "smol-lm"} & set(operator.all())
    done = models("import", str(old))
    assert done.status == 0, done
    *lines, total = done.stdout.splitlines()
    reported = {}
    for line in lines:
        matched = re.fullmatch(r"(taken|refused|skipped) (\S+(?: \(\w+\))?)(?:: (.+))?", line)
        assert matched, line
        reported[matched[2].removeprefix(f"{old}/")] = (matched[1], matched[3] or "")
    outcomes = {name: outcome for name, (outcome, _) in reported.items()}
    assert outcomes == {
        "tiny-llama (gguf)": "taken",
        "smol-lm (safetensors)": "taken",
        "whisper-tiny (whisper)": "taken",
        "org/nested (gguf)": "taken",
        "loose.BF16 (gguf)": "taken",
        "cut (gguf)": "refused",
        "no-tokenizer (safetensors)": "refused",
        "evil (whisper)": "refused",
        "two": "refused",
        "both": "refused",
        "nothing": "skipped",
        "readme.txt": "skipped",
    }
    assert total == "5 taken, 5 refused, 2 skipped"
    for name, words in {
        "smol-lm (safetensors)": ["architecture 'exotic9000' is not supported by torch"],
        "whisper-tiny (whisper)": ["no audio service is running"],
        "cut (gguf)": ["cut.gguf", "10000000", str(demo_model().stat().st_size)],
        "no-tokenizer (safetensors)": ["tokenizer.json"],
        "evil (whisper)": ["tiny.pt", "print"],
        "two": ["a.gguf", "b.gguf", "allm models add"],
        "both": ["both.gguf", "safetensors", "allm models add"],
    }.items():
        assert all(word in reported[name][1] for word in words), reported[name]
    assert reported["smol-lm (safetensors)"][1].startswith("architecture 'exotic9000'"), "its name is said once"
    assert reported["tiny-llama (gguf)"] == ("taken", "")
    would = {entry["id"]: entry["outcome"] for entry in dry.json["models"]}
    assert {name for name, outcome in would.items() if outcome == "would_take"} >= {"tiny-llama", "smol-lm"}
    assert files() == before, "nothing in it is changed"
    operator.until_state("tiny-llama", "ready")
    assert "Paris" in operator.answer("org/nested")
    again = models("import", str(old))
    assert again.status == 1
    assert again.stdout.splitlines()[-1] == "10 refused, 2 skipped"
    assert f"{old.as_uri()}/tiny-llama" in again.stdout


def test_import_from_elsewhere_says_what_to_start_allm_with(tmp_path: Path, models: Callable[..., Done]) -> None:
    link(tmp_path / "old" / "m" / WEIGHTS)
    done = models("import", str(tmp_path / "old"))
    assert done.status == 1
    assert done.stdout.startswith("refused m (gguf): ")
    assert f"ALLM_MODEL_ROOTS={tmp_path / 'old'}" in done.stderr
