"""The chart and the table of a comparison."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from bench.chart import draw
from bench.comparison import Case, Comparison, Figures, markdown
from bench.prompts import PromptSet

SVG = "{http://www.w3.org/2000/svg}"


def figures(speed: float, first_token: float, errors: int = 0) -> Figures:
    return Figures(speed, first_token, first_token, 10.0, 12.0, 20.0, 0.0, 5.0, 1.0, errors)


def comparison(precision: str, prompt_set: PromptSet, clients: int, speed: float, first: float) -> Comparison:
    return Comparison(Case(precision, prompt_set, clients), "a & b", figures(speed, first), figures(100.0, 100.0))


COMPARISONS = [
    comparison("Q4_1", PromptSet.UNIQUE, 1, 96.0, 90.0),
    comparison("Q4_1", PromptSet.UNIQUE, 32, 104.0, 114.0),
    comparison("Q4_1", PromptSet.SHARED, 32, 187.0, 43.0),
    comparison("BF16", PromptSet.UNIQUE, 1, 101.0, 116.0),
]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - our own


def test_is_valid_and_holds_the_numbers() -> None:
    shown = texts(draw(COMPARISONS, "2 cores <& more>"))
    for number in ("0.96x", "1.04x", "1.87x", "1.01x", "0.90x", "1.14x", "0.43x", "1.16x"):
        assert number in shown
    assert "2 cores <& more>" in shown
    assert {"allm", "llama-server", "1", "32"} <= set(shown)
    assert "clients, shared prompts" in shown


def test_bars_stay_inside_and_are_as_tall_as_the_ratios() -> None:
    root = ElementTree.fromstring(draw(COMPARISONS, ""))  # noqa: S314 - our own
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    bars = [
        bar for bar in root.iter(f"{SVG}rect") if bar.get("class") in ("ours", "peer") and bar.get("height") != "13"
    ]
    assert len(bars) == 2 * 2 * len(COMPARISONS)
    for bar in bars:
        left, top, wide, tall = (float(bar.get(name, -1)) for name in ("x", "y", "width", "height"))
        assert 0 <= left < left + wide <= width
        assert 0 <= top < top + tall <= height
    peer, ours = (float(bar.get("height", 0)) for bar in bars[:2])
    assert abs(ours / peer - 0.96) < 0.01


def test_follows_the_dark_scheme() -> None:
    assert "prefers-color-scheme: dark" in draw(COMPARISONS, "")


def test_missing_measurements_are_left_blank() -> None:
    failed = Comparison(Case("BF16", PromptSet.UNIQUE, 1), "x", figures(0.0, float("nan"), 8), figures(0.0, 100.0))
    assert "nanx" not in " ".join(texts(draw([failed], "")))


def test_targets_and_the_bound_of_the_first_token() -> None:
    alone, together, shared, late = COMPARISONS
    assert (alone.case.target, together.case.target, shared.case.target) == (0.97, 1.0, 1.0)
    assert [one.fast_enough for one in COMPARISONS] == [False, True, True, True]
    assert [one.prompt_enough for one in COMPARISONS] == [True, True, True, False]
    assert late.first_token == 1.16


def test_markdown_lists_ratios_and_missed_targets() -> None:
    tuned = replace(COMPARISONS[1], tuned=figures(120.0, 80.0), ours=replace(figures(104.0, 114.0), gap_p95_ms=31.0))
    about, _, *lines = markdown([COMPARISONS[0], tuned, *COMPARISONS[2:]]).splitlines()
    assert "as installed" in about
    assert len(lines) == 2 + len(COMPARISONS)
    assert "| 0.96x (target 0.97x) |  | 0.90x |" in lines[2]
    assert "| 1.04x | 1.20x | 1.14x |" in lines[3]
    assert "| 3.1 (bound 3) |" in lines[3]
    assert "| 1.2 |" in lines[4]
    assert len({line.count("|") for line in lines}) == 1
