"""Wrong input to the commands: one line on the standard error, which names what is wrong and what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from tests.case import case
from tests.demo_model import demo_model
from tests.loopback_hub import LoopbackHub
from tests.operator_side import Operator
from tests.ports import free_port
from tests.stack import MODEL, Stack, environment

USAGE, PROBLEM = 2, 1


def check(home: Path, command: str, status: int, *words: str, **settings: str) -> None:
    """Runs a command, and checks its exit status and its only line of error."""
    environ = {**environment(home), "NO_COLOR": "1", **settings}
    with case(command=command, **settings):
        done = CliRunner().invoke(app, command.split(), env=environ, catch_exceptions=False, prog_name="allm")
        *progress, line = done.stderr.splitlines()
        assert done.exit_code == status, line
        assert line.startswith("allm: "), done.stderr
        assert not [each for each in progress if not each.startswith("new: ")], done.stderr  # a model's source
        assert done.stdout == ""
        for word in words:
            assert word in line


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("pul", ("no such command 'pul'", "Did you mean 'pull'?", "`allm --help`")),
        ("models ad", ("no such command 'ad'", "'add'", "`allm models --help`")),
        ("run", ("missing argument 'MODEL'", "`allm run --help`")),
        ("pull", ("missing argument '[ID] SOURCE'",)),
        ("serve --prot 1", ("no such option: --prot", "--port")),
        ("serve --port http", ("invalid value for '--port'",)),
        ("serve --port 70000", ("ALLM_PORT='70000'", "0 to 65535")),
        ("serve --host nonsense", ("ALLM_HOST='nonsense'", "an IP address or localhost")),
        ("models add m hf://o/n --format onnx", ("'onnx' is not one of", "safetensors")),
        ("models bench m --tokens 1", ("'--tokens'", "2")),
    ],
)
def test_wrong_words(tmp_path: Path, command: str, words: tuple[str, ...]) -> None:
    check(tmp_path, command, USAGE, *words)


def test_a_misspelt_setting_stops_the_start(tmp_path: Path) -> None:
    check(tmp_path, "serve", PROBLEM, "ALLM_PROT is not a setting: did you mean ALLM_PORT?", ALLM_PROT="9000")


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/home"):
        check(tmp_path / place, "serve", PROBLEM, f"{tmp_path / place} cannot be written", "with ALLM_HOME")


def test_without_a_server(tmp_path: Path) -> None:
    port = str(free_port())
    for command in ("top --once", f"run {MODEL} hello", "pull org/m", "models list", "models remove m", "keys list"):
        check(tmp_path, command, PROBLEM, "does not answer on 127.0.0.1:", "start it with `allm serve`", ALLM_PORT=port)
    check(tmp_path, "models list --address nowhere", PROBLEM, "--address nowhere must be host:port")


def test_models_that_do_not_exist_or_fit(shared_operator: Operator) -> None:
    home = shared_operator.stack.home
    for command in ("run nobody hello", "models show nobody", "models load nobody", "models remove nobody"):
        check(home, command, PROBLEM, "The model `nobody` does not exist", "`allm models list`", "`allm pull`")
    check(home, f"run {MODEL}", PROBLEM, "there is no prompt", "as an argument or through a pipe")
    check(home, f"run {MODEL} hello --set warmth=1", PROBLEM, "warmth is none of system, temperature")
    check(home, f"run {MODEL} hello --set temperature=hot", PROBLEM, "temperature must be a number, not hot")
    check(home, f"models remove {MODEL}", PROBLEM, "confirm with --yes")


def test_the_kind_of_a_model(stack: Stack) -> None:
    for model in ("whisper-tiny.en", "shapes-sd", "all-minilm-l6-v2"):
        check(stack.home, f"run {model} hello", PROBLEM, f"The model `{model}` is for", ", not for")


def test_sources_on_the_hub(shared_operator: Operator, session_hub: LoopbackHub, tmp_path: Path) -> None:
    home = shared_operator.stack.home
    for name in ("good", "pickled", "strange", "empty"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").touch()
    shutil.copyfile(demo_model(), tmp_path / "good" / "m-Q8_0.gguf")
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "strange" / "model.onnx").write_bytes(b"x")
    for name in ("good", "pickled", "strange", "empty"):
        session_hub.add(f"wrong/{name}", tmp_path / name)
    check(home, "pull wrong/godo", PROBLEM, "hf://wrong/godo", "does not exist, or is private", "HF_TOKEN")
    check(home, "pull wrong/good:Q9_X", PROBLEM, "hf://wrong/good has no 'Q9_X'; it has Q8_0")
    check(home, "pull wrong/pickled", PROBLEM, "no model of a known format", "pytorch_model.bin", "to safetensors")
    for name in ("strange", "empty"):
        check(home, f"pull wrong/{name}", PROBLEM, "no model of a known format: GGUF, safetensors, Whisper")
    check(home, "pull https://example.org/m", PROBLEM, "https://example.org/m", "ORG/NAME")
    check(home, "pull llama", PROBLEM, "llama is not a file or folder on this machine", "a repository of the hub")
    check(home, "pull new wrong/good --runtime none", PROBLEM, "no runtime 'none'", "llama_cpp")
    check(home, "pull new wrong/good --dtype int3", PROBLEM, "one of auto, bfloat16")
    check(home, "pull a b c", PROBLEM, "3 arguments are given", "[ID] SOURCE")


def test_sources_on_this_machine(shared_operator: Operator, tmp_path: Path) -> None:
    home, root = shared_operator.stack.home, shared_operator.root
    (empty := root / "no-model").mkdir()
    (pickled := root / "weights.bin").write_bytes(b"x")
    (cut := root / "cut.gguf").write_bytes(b"GGUF")
    (bare := root / "bare.safetensors").write_bytes(b"x")
    shutil.copyfile(demo_model(), elsewhere := tmp_path / "m.gguf")
    check(home, f"pull {tmp_path}/none.gguf", PROBLEM, f"{tmp_path}/none.gguf is not a file or folder")
    check(home, f"pull {empty}", PROBLEM, f"{empty} has no model of a known format")
    check(home, f"pull {pickled}", PROBLEM, "weights.bin is a pickle", "convert it to safetensors")
    check(home, f"pull {bare}", PROBLEM, "bare.safetensors needs the config.json of its folder")
    check(home, f"pull new {cut}", PROBLEM, "cut.gguf is cut off")
    check(home, f"pull {elsewhere}", PROBLEM, f"{elsewhere} is not below one of ALLM_MODEL_ROOTS", "move it there")


def test_a_hub_that_fails(shared_operator: Operator, session_hub: LoopbackHub) -> None:
    session_hub.status("", 503, times=-1)
    try:
        check(shared_operator.stack.home, "pull wrong/good", PROBLEM, f"the hub at {session_hub.endpoint} answers 503")
    finally:
        session_hub.heal()


def test_keys(guarded: Stack) -> None:
    remedy = "set ALLM_API_KEY to a key that `allm keys create` has made"
    check(guarded.home, f"run {MODEL} hello", PROBLEM, "Missing API key", remedy)
    for command in (f"run {MODEL} hello", "models list"):
        check(guarded.home, command, PROBLEM, "Incorrect API key", remedy, ALLM_API_KEY="sk-allm-wrong")
    check(guarded.home, "keys revoke key_0", PROBLEM, "There is no key with the id `key_0`")
    check(guarded.home, "keys create me --scope root", PROBLEM, "may contain inference, admin, not 'root'")
