"""The models file: the models that an operator declares, each with all fields of a registration.

    models:
      - id: qwen
        source: hf://Qwen/Qwen3-0.6B-GGUF#Qwen3-0.6B-Q8_0.gguf
        format: gguf
        aliases: [gpt-4o-mini]

An invalid entry is reported with its line; the other entries still count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from services.catalog.registration.composition import MAX_LORAS, Composition, LoraChoice
from services.catalog.registration.marked_yaml import Marked, Wrong, read_yaml
from services.catalog.registration.register import NewModel
from services.catalog.registration.validation import MAX_ALIASES
from services.models.descriptor import AS_THE_SERVICE_DOES, EngineSettings
from services.models.desired import ImageDefaults

MAX_FILE_BYTES = 1024 * 1024  # the limit of a ConfigMap
MAX_ENTRIES = 1000
_REQUIRED = ("id", "source", "format")
_TEXTS = ("id", "source", "revision", "format", "modality", "base", "runtime")
_KEYS = tuple(
    "id source revision format modality aliases base loras image_defaults runtime engine keep_loaded".split()  # noqa: SIM905
)
_ENGINE_WORDS = ("dtype", "speculation")
_ENGINE_NUMBERS = ("tensor_parallel", "pipeline_parallel", "context_tokens", "max_sequences", "kv_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The reason why an entry, or the whole file, is not applied."""

    line: int  # from 1; 0: no particular line
    key: str  # as in `models[2].source`; empty: the whole file
    model: str  # id of the entry; empty: it has none, or the problem is the whole file's
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """An entry that can be applied."""

    new: NewModel
    keep_loaded: bool | None  # None: not set
    text: str  # equal for equivalent entries; stored with the registration
    key: str = field(compare=False)
    lines: Mapping[str, int] = field(compare=False)  # line of each key; under the empty key: that of the entry

    @property
    def id(self) -> str:
        """The model's id."""
        return self.new.id

    @property
    def local(self) -> bool:
        """True for files on this machine, which may change without notice."""
        return self.new.source.startswith("file:")

    def problem(self, param: str | None, message: str) -> Problem:
        """Returns a problem of this entry, at the key that `param` names."""
        name = (param or "").partition(".")[0]
        if name not in self.lines:
            name = ""
        return Problem(
            line=self.lines[name], key=f"{self.key}.{name}" if name else self.key, model=self.id, message=message
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsFile:
    """The parsed models file."""

    declarations: tuple[Declaration, ...]
    problems: tuple[Problem, ...]
    named: frozenset[str]  # ids of all entries, including the invalid ones
    complete: bool  # whether every entry has what it must have; otherwise entries may be missing, and none is removed


def read_file(path: Path) -> bytes:
    """Reads the file; follows links, so that the file may be swapped. Blocks. Raises Wrong."""
    try:
        if not path.is_file():
            raise Wrong(0, "", "there is no such file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Wrong(0, "", f"it cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise Wrong(0, "", f"it has more than {MAX_FILE_BYTES} bytes")
    return data


def read_models(data: bytes) -> ModelsFile:
    """Parses the bytes of a models file.

    Raises:
        Wrong: the file as a whole cannot be parsed.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Wrong(line, "", "it is not UTF-8") from error
    # JSON allows tabs between tokens and YAML does not; inside JSON strings they cannot occur.
    braced = text.lstrip().startswith("{")
    document = read_yaml(text.replace("\t", " ") if braced else text)
    fields = document.fields(("models",))
    if "models" not in fields:  # not a reason to remove all models: the file may be half written
        raise Wrong(document.line, "models", "the list of models is missing: `models: []` declares none")
    entries = fields["models"].items(MAX_ENTRIES)
    if entries and not braced and not text.endswith("\n"):
        line = len(text.splitlines())
        raise Wrong(line, "", "the file ends within its last line, so it may be half written: end it with a line break")
    named = [entry.peek("id") for entry in entries]
    taken = dict.fromkeys(named, "")  # name -> id of the alias's owner, empty for an id; ids precede all aliases
    declarations: dict[str, Declaration] = {}
    problems = []
    for entry in entries:
        try:
            declaration = _declaration(entry, declarations)
            _check_aliases(declaration, taken)
        except Wrong as wrong:
            problems.append(Problem(line=wrong.line, key=wrong.key, model=entry.peek("id"), message=wrong.message))
        else:
            declarations[declaration.id] = declaration
            taken |= dict.fromkeys(declaration.new.aliases, declaration.id)
    return ModelsFile(
        declarations=tuple(declarations.values()),
        problems=tuple(problems),
        named=frozenset(named),
        complete=all(entry.peek(name) for entry in entries for name in _REQUIRED),
    )


def _check_aliases(declaration: Declaration, taken: Mapping[str, str]) -> None:
    """Checks that no other entry has these aliases: otherwise chance would decide who gets them."""
    for alias in declaration.new.aliases:
        if alias in taken:
            whose = f"an alias of {taken[alias]!r}" if taken[alias] else "an id"
            line, key = declaration.lines["aliases"], f"{declaration.key}.aliases"
            raise Wrong(line, key, f"the alias {alias!r} is already {whose} in this file")


def _declaration(entry: Marked, before: Mapping[str, Declaration]) -> Declaration:
    fields = entry.fields(_KEYS)
    for name in _REQUIRED:
        if name not in fields:
            raise Wrong(entry.line, f"{entry.key}.{name}", f"{entry.key} must have {name!r}")
    if earlier := before.get(entry.peek("id")):
        what = f"the id {earlier.id!r} appears twice, also in line {earlier.lines['']}"
        raise Wrong(entry.line, f"{entry.key}.id", what)
    texts = {name: fields[name].text() if name in fields else "" for name in _TEXTS}
    aliases = [alias.text() for alias in fields["aliases"].items(MAX_ALIASES)] if "aliases" in fields else []
    loras = [_lora(lora) for lora in fields["loras"].items(MAX_LORAS)] if "loras" in fields else []
    new = NewModel(
        id=texts["id"],
        source=_source(texts["source"], texts["revision"], fields),
        format=texts["format"],
        modality=texts["modality"],
        aliases=tuple(aliases),
        composition=Composition(texts["base"], tuple(loras)),
        image_defaults=_image_defaults(fields["image_defaults"]) if "image_defaults" in fields else ImageDefaults(),
        runtime=texts["runtime"],
        engine=_engine(fields["engine"]) if "engine" in fields else AS_THE_SERVICE_DOES,
    )
    keep_loaded = fields["keep_loaded"].flag() if "keep_loaded" in fields else None
    return Declaration(
        new=new,
        keep_loaded=keep_loaded,
        text=_text(new, keep_loaded),
        key=entry.key,
        lines={"": entry.line} | {name: value.line for name, value in fields.items()},
    )


def _source(source: str, revision: str, fields: Mapping[str, Marked]) -> str:
    """Returns the source with its revision."""
    if not revision:
        return source
    place = fields["revision"]
    repository, hash_sign, file = source.partition("#")
    if not source.startswith("hf://"):
        raise Wrong(place.line, place.key, f"{place.key} is for sources of the hub, hf://org/name")
    if "@" in repository:
        raise Wrong(place.line, place.key, f"{place.key}: the source already has a revision")
    if "@" in revision or "#" in revision or not revision.isprintable() or " " in revision:
        raise Wrong(place.line, place.key, f"{place.key} must be a branch, a tag or a commit")
    return f"{repository}@{revision}{hash_sign}{file}"


def _lora(value: Marked) -> LoraChoice:
    fields = value.fields(("source", "scale"))
    if "source" not in fields:
        raise Wrong(value.line, f"{value.key}.source", f"{value.key} must have 'source'")
    return LoraChoice(fields["source"].text(), fields["scale"].number() if "scale" in fields else 1.0)


def _image_defaults(value: Marked) -> ImageDefaults:
    fields = value.fields(("steps", "guidance"))
    return ImageDefaults(
        steps=fields["steps"].integer() if "steps" in fields else None,
        guidance=fields["guidance"].number() if "guidance" in fields else None,
    )


def _engine(value: Marked) -> EngineSettings:
    fields = value.fields((*_ENGINE_NUMBERS, *_ENGINE_WORDS))
    given: dict[str, Any] = {name: fields[name].integer() for name in _ENGINE_NUMBERS if name in fields}
    given |= {name: fields[name].text() for name in _ENGINE_WORDS if name in fields}
    return EngineSettings(**given)


def _text(new: NewModel, keep_loaded: bool | None) -> str:
    fields: dict[str, Any] = {
        "source": new.source,
        "format": new.format,
        "aliases": new.aliases,
        "base": new.composition.base,
        "loras": [(lora.source, lora.scale) for lora in new.composition.loras],
        "image_defaults": (new.image_defaults.steps, new.image_defaults.guidance),
        "runtime": new.runtime,
        "keep_loaded": keep_loaded,
    }
    if new.engine != AS_THE_SERVICE_DOES:  # otherwise the text would differ from the one an earlier version stored
        fields["engine"] = asdict(new.engine)
    return json.dumps(fields, separators=(",", ":"))
