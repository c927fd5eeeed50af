"""The chart of the comparison for the README: bars of allm next to llama-server's, as ratios to llama-server.

The chart is plain SVG. It follows the reader's light or dark scheme and embeds no font.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

from bench.comparison import Comparison

_WIDTH = 920
_MARGIN = 32
_HEAD = 84  # title, caption and legend
_PLOT_HEIGHT = 150
_ROW_HEIGHT = _PLOT_HEIGHT + 104  # a plot with its title above and two lines of labels below
_FOOT = 44
_BAR = 20  # widest bar

# Each colour is set for the light scheme and overridden for the dark one, because some renderers lack CSS variables.
_STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; fill: #1f2328; }
  .title { font-size: 19px; font-weight: 600; }
  .head { font-size: 14px; font-weight: 600; }
  .label { font-size: 13px; }
  .value { font-size: 13px; font-weight: 600; }
  .soft { font-size: 13px; fill: #59636e; }
  .back { fill: #ffffff; }
  .peer { fill: #a9b2bc; }
  .ours { fill: #0969da; }
  .line { stroke: #d1d9e0; stroke-width: 1; }
  .even { stroke: #59636e; stroke-width: 1; stroke-dasharray: 4 3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .soft { fill: #9198a1; }
    .back { fill: #0d1117; }
    .peer { fill: #59626d; }
    .ours { fill: #4493f8; }
    .line { stroke: #3d444d; }
    .even { stroke: #9198a1; }
  }
"""


@dataclass(frozen=True, slots=True)
class _Measure:
    """One row of the chart."""

    title: str
    better: str
    ratio: Callable[[Comparison], float]


_MEASURES = (
    _Measure("Output tokens per second", "taller is better", lambda one: one.speed),
    _Measure("Time to first token", "shorter is better", lambda one: one.first_token),
)


def draw(comparisons: Sequence[Comparison], caption: str) -> str:
    """Draws the chart as SVG: a row for each measure, a plot for each precision, two bars for each case."""
    panels = [list(group) for _, group in groupby(comparisons, key=lambda one: one.case.precision)]
    height = _HEAD + _ROW_HEIGHT * len(_MEASURES) + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        ' role="img" aria-labelledby="name about">',
        '<title id="name">allm and llama-server, side by side</title>',
        f'<desc id="about">{escape(_description(comparisons))}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="back" width="{_WIDTH}" height="{height}" rx="8"/>',
        *_heading(caption),
    ]
    for row, measure in enumerate(_MEASURES):
        top = _HEAD + row * _ROW_HEIGHT
        highest = 1.18 * max([1.0, *(value for one in comparisons if math.isfinite(value := measure.ratio(one)))])
        for column, panel in enumerate(panels):
            width = (_WIDTH - _MARGIN * (len(panels) + 1)) / len(panels)
            parts += _plot(measure, panel, _MARGIN + column * (width + _MARGIN), top, width, highest)
    parts.append(_text(_MARGIN, height - 18, "soft", "Each pair is one case of the same run; llama-server is 1.00x."))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _heading(caption: str) -> Iterator[str]:
    yield _text(_MARGIN, 36, "title", "allm and llama-server on the same machine, model and prompts")
    yield _text(_MARGIN, 60, "soft", caption)
    left = _WIDTH - _MARGIN - 196
    for offset, name, label in ((0, "ours", "allm"), (68, "peer", "llama-server")):
        yield f'<rect class="{name}" x="{left + offset}" y="49" width="13" height="13" rx="2"/>'
        yield _text(left + offset + 19, 60, "label", label)


def _plot(
    measure: _Measure, panel: Sequence[Comparison], left: float, top: float, width: float, highest: float
) -> Iterator[str]:
    """Draws one plot: bars above a base line, grouped by prompt set, with a dashed line at the ratio 1."""
    base = top + 44 + _PLOT_HEIGHT
    scale = _PLOT_HEIGHT / highest
    yield _text(left, top + 20, "head", f"{measure.title}, {panel[0].case.precision}")
    yield _text(left + width, top + 20, "soft", measure.better, "end")
    slot = width / len(panel)
    bar = min(_BAR, slot / 2.6)
    for place, one in enumerate(panel):
        middle = left + (place + 0.5) * slot
        ratio = measure.ratio(one)
        yield _bar("peer", middle + 1, base, bar, scale)
        if math.isfinite(ratio):
            yield _bar("ours", middle - bar - 1, base, bar, ratio * scale)
            yield _text(middle, base - max(ratio, 1.0) * scale - 6, "value", f"{ratio:.2f}x", "middle")
        yield _text(middle, base + 18, "label", str(one.case.concurrency), "middle")
    yield f'<line class="line" x1="{left:.1f}" x2="{left + width:.1f}" y1="{base}" y2="{base}"/>'
    even = base - scale
    yield f'<line class="even" x1="{left:.1f}" x2="{left + width:.1f}" y1="{even:.1f}" y2="{even:.1f}"/>'
    place = 0
    for prompt_set, group in groupby(panel, key=lambda one: one.case.prompt_set):
        count = len(list(group))
        middle = left + (place + count / 2) * slot
        yield _text(middle, base + 38, "soft", f"clients, {prompt_set} prompts", "middle")
        place += count


def _bar(name: str, left: float, base: float, width: float, height: float) -> str:
    place = f'x="{left:.1f}" y="{base - height:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{name}" {place} rx="2"/>'


def _text(x: float, y: float, name: str, text: str, anchor: str = "start") -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _description(comparisons: Sequence[Comparison]) -> str:
    """Describes the chart in words, for screen readers."""
    sentences = []
    for one in comparisons:
        case = one.case
        sentences.append(
            f"{case.precision}, {case.prompt_set} prompts, {case.concurrency} clients: {one.speed:.2f} times the tokens"
            f" per second, {one.first_token:.2f} times the time to first token."
        )
    return " ".join(sentences)
