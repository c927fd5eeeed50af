"""The check of a GPU, on the processor with tiny models: it keeps the command working until it meets a card."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import verified
from bench.gpu import answers, report
from bench.gpu.parts import PARTS
from bench.gpu.result import Failed, NotRun, Result
from services.text.engine.messages import TokenLogprob

PATIENCE_SECONDS = 590
EXPECTED = [
    "the processor answers",
    "answers on cpu",
    "answers in a batch",
    "1 clients",
    "3 clients",
    "memory against the reckoning",
    "a killed worker gives memory back",
    "a new worker answers the same",
    "eviction gives memory back",
    "transformers' continuous batching",
    "vLLM",
    "CUDA graphs on and off",
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.gpu", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "ALLM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        check=False,
    )


@pytest.mark.slow
def test_a_part_runs_on_the_processor_and_is_not_repeated(tmp_path: Path) -> None:
    given = ["--device", "cpu", "--small", "--out", str(tmp_path), "--only", "qwen3"]
    done = run(*given)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "qwen3.json").read_text())
    verdicts = {check["name"]: check["verdict"] for check in document["checks"]}
    assert list(verdicts) == EXPECTED
    assert {name for name, verdict in verdicts.items() if verdict != "passed"} == {"vLLM"}
    assert [level["clients"] for level in document["figures"]["levels"]] == [1, 3]
    assert (document["device"], document["runtime"], document["weights"]) == ("cpu", "torch", "random")
    assert document["finished"]
    page = (tmp_path / "gpu.md").read_text()
    assert "| qwen3 | torch | Qwen3-8B, 4 layers, random bf16 weights | 11 passed, 1 not run |" in page
    assert "| minilm | torch | all-MiniLM-L6-v2 | not run |" in page, "what was not asked for is never green"
    (missing,) = [line for line in page.splitlines() if line.startswith("Not run on CUDA")]
    assert ", minilm, " in missing
    assert "; in part qwen3 (" in missing
    again = run(*given)
    assert again.returncode == 0
    assert "qwen3: finished before" in again.stdout


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path), "--only", "qwen3")
    assert done.returncode == 1
    assert "cuda cannot be used: bandwidth failed" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_it_names_its_parts() -> None:
    done = run("--list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [part.name for part in PARTS]


def said(*pieces: tuple[str, float, dict[str, float]]) -> answers.Said:
    return [
        TokenLogprob(piece.encode(), value, [(name.encode(), each) for name, each in top.items()])
        for piece, value, top in pieces
    ]


def test_the_distance_ends_at_the_first_other_token() -> None:
    one = said(("a", -0.1, {"a": -0.1, "b": -3.0}), ("c", -0.70, {"c": -0.70, "d": -0.72}), ("e", 0.0, {"e": 0.0}))
    two = said(("a", -0.2, {"a": -0.2, "b": -3.1}), ("d", -0.69, {"c": -0.71, "d": -0.69}), ("f", 0.0, {"f": 0.0}))
    found = answers.distance([one], [two])
    assert found.positions == 2
    assert found.largest == pytest.approx(0.1)
    assert found.partings == [pytest.approx(0.02)]


@pytest.mark.parametrize("value", [-5.0, math.nan])
def test_a_mistake_is_beyond_the_tolerances(value: float) -> None:
    one = said(("a", -0.1, {"a": -0.1, "b": -4.0}))
    two = said(("b", value, {"b": value, "a": -0.2}))
    with pytest.raises(Failed):
        answers.distance([one], [two]).check()


def test_missing_checks_never_pass(tmp_path: Path) -> None:
    result = Result(tmp_path / "part.json", {})
    with result.check("a", "nothing"):
        raise NotRun("no weights")
    document = json.loads((tmp_path / "part.json").read_text())
    assert (document["passed"], document["checks"][0]["verdict"]) == (False, "skipped")
    assert document["checks"][0]["seen"] == "not run: no weights"


def test_the_page_keeps_the_text_outside_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text(f"before {report.BEGIN} old {report.END} after")
    report.fill(page, "new")
    assert page.read_text() == f"before {report.BEGIN}\n\nnew\n{report.END} after"
    assert report.PAGE.read_text().count(report.BEGIN) == report.PAGE.read_text().count(report.END) == 1


def test_parts_of_earlier_runs_stay_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    (results / "gpu").mkdir(parents=True)
    docs = tmp_path / "gpu-docs.md"
    docs.write_text(f"{report.BEGIN} {report.END}")
    for name, value in (("RESULTS", results), ("KEPT", results / "gpu"), ("PAGE", docs)):
        monkeypatch.setattr(report, name, value)
    monkeypatch.setattr(verified, "RESULTS", results / "verified")
    for run, part in enumerate(("qwen3", "minilm")):  # each on a machine that knows nothing of the other
        out = tmp_path / f"out-{run}"
        out.mkdir()
        (out / "device.json").write_text('{"name": "card", "bytes_per_second": 1e12}')
        head = {"model": f"bench/{part}", "runtime": "torch", "device": "cuda"}
        result = Result(out / f"{part}.json", head)
        with result.check("a", "nothing"):
            pass
        result.finish()
        assert report.write(out, record=True) == 0
    rows = {line.split("|")[1].strip(): line for line in docs.read_text().splitlines() if line.startswith("| ")}
    assert "| 1 passed |" in rows["qwen3"]
    assert "| 1 passed |" in rows["minilm"]
    assert "| not run |" in rows["whisper"]


def test_the_docs_name_what_has_not_run_in_the_part_that_is_overwritten() -> None:
    _, _, rest = report.PAGE.read_text().partition(report.BEGIN)
    inside, _, after = rest.partition(report.END)
    assert "Not run on CUDA, of these parts: " in inside
    assert report.BESIDE in inside
    assert "Not run on CUDA" not in after
