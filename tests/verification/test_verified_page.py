"""The page docs/verified-models.md: it matches the recorded results."""

from __future__ import annotations

from bench.verified import FAMILIES, PAGE, family_of, files, load, page
from services.cli.verify.check import file_name
from services.cli.verify.suite import CHECKS, NO_SENSE

LATER = {"pictures"}  # checks that are newer than some results; those on GPUs cannot be recorded anew at will


def test_the_page_is_generated_from_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(load()), "run python -m bench.verified"


def test_every_family_is_recorded_with_what_it_ran_on() -> None:
    results = load()
    assert {family_of(each["architecture"]) for each in results} == set(FAMILIES)
    for each in results:
        assert each["weights"] in ("real", "random")
        assert each["runtime"]
        assert each["device"]
        assert each["versions"]["allm"]
        names = [check["name"] for check in each["checks"]]
        assert names == [check.name for check in CHECKS if check.name in names or check.name not in LATER], (
            "all of then"
        )
        assert each["passed"]
    assert {file_name(each) for each in results} == {path.name for path in files()}


def test_limits_of_random_weights_are_stated() -> None:
    for each in load():
        not_shown = {check["name"] for check in each["checks"] if check["seen"] == NO_SENSE}
        assert not_shown == ({"likelihood", "stop-tokens"} if each["weights"] == "random" else set())


def test_a_cell_cannot_break_the_table() -> None:
    result = load()[0]
    result["checks"] = [{"name": "x", "verdict": "failed", "seen": "a|b\n<|c|>", "compared": "d", "seconds": 1.0}]
    assert "| x | **no** | a\\|b &lt;\\|c\\|&gt; | d |\n" in page([result])
