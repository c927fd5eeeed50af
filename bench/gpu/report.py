"""The report of the check: bench/results/gpu.md, bench/results/verified/*-cuda.json, and the table of docs/gpu.md.

The result of each part is kept in bench/results/gpu, so that parts may run on different days, on different machines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.parts import PARTS
from bench.gpu.tolerances import TOLERANCES
from services.byte_count import bytes_word

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
KEPT = RESULTS / "gpu"
PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- gpu-check: begin -->", "<!-- gpu-check: end -->"
BESIDE = (
    "No part covers several GPUs, Vulkan on a real GPU, the container images and "
    "`allm models verify-families`; they have not run on a GPU."
)
MARKS = {"passed": "yes", "failed": "**no**", "skipped": "not run"}

Document = Mapping[str, Any]


def write(out: Path, *, record: bool) -> int:
    """Writes the report into `out`, and with `record` into the repository; returns the number of failed checks."""
    found = {part.name: _load(out / f"{part.name}.json") for part in PARTS}
    documents = found
    if record:
        documents = {name: document or _load(KEPT / f"{name}.json") for name, document in found.items()}
    device = json.loads((out / "device.json").read_text(encoding="utf-8"))
    text = page(documents, device)
    (out / "gpu.md").write_text(text, encoding="utf-8")
    print(f"{out / 'gpu.md'} is written", flush=True)
    if record:
        (RESULTS / "gpu.md").write_text(text, encoding="utf-8")
        for name, document in found.items():
            if document and not document["not_run"] and document["model"]:
                _record(name, document)
        fill(PAGE, overview(documents, device))
    checks = [check for document in found.values() if document for check in document["checks"]]
    return sum(check["verdict"] == "failed" for check in checks)


def page(documents: Mapping[str, Document | None], device: Document) -> str:
    """Formats bench/results/gpu.md."""
    parts = [
        "# GPU check\n",
        "Written by `make gpu-check`.\n",
        overview(documents, device),
        "## Tokens per second\n",
        _speeds(documents),
        "## Checks\n",
        *(_part(name, document) for name, document in documents.items() if document),
        "## Tolerances\n",
        "".join(f"- **{name}**: {tolerance}\n" for name, tolerance in TOLERANCES.items()),
    ]
    return "\n".join(parts)


def overview(documents: Mapping[str, Document | None], device: Document) -> str:
    """Formats the summary: the device, and a line for each part."""
    about = f"{device['name']}, {device['bytes_per_second'] / 1e9:,.0f} GB/s read and written by a copy"
    latest = max((each for each in documents.values() if each), key=lambda each: str(each["time"]), default=None)
    said = ", ".join(f"{name} {version}" for name, version in latest["versions"].items()) if latest else "never run"
    rows = [(part.name, part.runtime, part.about, *_outcome(documents[part.name])) for part in PARTS]
    head = ("Part", "Runtime", "Model", "Result", "Memory taken / reckoned", "Bandwidth alone", "Run")
    return f"{about}; {said}.\n\n{_table(head, rows)}\n{_not_run(documents)}"


def _not_run(documents: Mapping[str, Document | None]) -> str:
    """Names everything that has not run on CUDA: the only such list in the docs."""
    whole = [name for name, document in documents.items() if document is None or document["not_run"]]
    partly = [
        f"{name} ({each['name']})"
        for name, document in documents.items()
        if document and not document["not_run"]
        for each in document["checks"]
        if each["verdict"] == "skipped"
    ]
    found = "; in part ".join(", ".join(names) for names in (whole, partly) if names) or "nothing"
    return f"Not run on CUDA, of these parts: {found}. {BESIDE}\n"


def fill(path: Path, text: str) -> None:
    """Replaces what stands between the markers of a page. Raises ValueError if they are missing."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path} lacks the markers of the check")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def _outcome(document: Document | None) -> tuple[str, str, str, str]:
    if document is None:
        return "not run", "", "", ""
    if document["not_run"]:
        return f"not run: {_cell(document['not_run'])}", "", "", ""
    verdicts = [check["verdict"] for check in document["checks"]]
    words = {"passed": "passed", "failed": "**failed**", "skipped": "not run"}
    result = ", ".join(f"{verdicts.count(one)} {word}" for one, word in words.items() if one in verdicts)
    figures = document["figures"]
    memory, share = "", ""
    if "taken_bytes" in figures:
        memory = f"{bytes_word(max(0, figures['taken_bytes']))} / {bytes_word(figures['reckoned_bytes'])}"
    if "bandwidth_share" in figures:
        share = f"{100 * figures['bandwidth_share']:.0f}%"
    return result, memory, share, str(document["time"])[:10]


def _speeds(documents: Mapping[str, Document | None]) -> str:
    rows = []
    for name, document in documents.items():
        figures = document["figures"] if document else {}
        peers = figures.get("transformers", {}).get("levels", {})
        for level in figures.get("levels", ()):
            ours, theirs = level["tokens_per_second"], peers.get(str(level["clients"]))
            beside = (f"{theirs:.1f}", f"{ours / theirs:.2f}x") if theirs else ("not run", "")
            times = (f"{level['first_ms']:.0f}", f"{level['gap_ms']:.2f}")
            rows.append((name, str(level["clients"]), f"{ours:.1f}", *beside, *times))
    head = ("Part", "Clients", "allm tokens/s", "transformers tokens/s", "Ratio", "First token ms", "Between tokens ms")
    return _table(head, rows)


def _part(name: str, document: Document) -> str:
    title = f"### {name}: {document['model'] or 'no model'} on {document['runtime'] or 'no runtime'}\n"
    if document["not_run"]:
        return f"{title}\nNot run: {document['not_run']}\n"
    rows = [
        (each["name"], MARKS[each["verdict"]], _cell(each["seen"]), _cell(each["compared"]))
        for each in document["checks"]
    ]
    about = f"{bytes_word(document['size_bytes'])}, {document['machine']}, {document['seconds']:.0f} s"
    return f"{title}\n{about}\n\n{_table(('Check', 'Passed', 'Seen', 'Compared'), rows)}"


def _record(name: str, document: Document) -> None:
    from bench.verified import RESULTS as VERIFIED  # noqa: PLC0415
    from services.cli.verify.check import file_name  # noqa: PLC0415

    left = ("finished", "seconds", "not_run", "figures")
    content = {key: value for key, value in document.items() if key not in left}
    for path, what in ((VERIFIED / file_name(content), content), (KEPT / f"{name}.json", document)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(what, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _load(path: Path) -> Document | None:
    if not path.exists():
        return None
    document: Document = json.loads(path.read_text(encoding="utf-8"))
    return document


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """Escapes text for a table cell."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
    return " ".join(escaped.replace("*", "\\*").split())
