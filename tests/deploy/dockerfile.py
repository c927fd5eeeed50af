"""A Dockerfile, as far as ours use the language: stages, and what each does, in order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONTAINERS = Path(__file__).parents[2] / "containers"
IMAGES = ("catalog", "gateway", "text", "text-vllm", "audio", "image")


@dataclass
class Stage:
    """What stands between two FROMs."""

    name: str  # empty: it has none, as the last one
    start: str  # what it starts from: an image, or another stage
    steps: list[tuple[str, str]] = field(default_factory=list)  # instruction, and what follows it


@dataclass
class Dockerfile:
    """A parsed file. `arguments`: those before the first FROM, with their defaults."""

    arguments: dict[str, str]
    stages: list[Stage]

    def stage(self, name: str) -> Stage | None:
        """The stage of that name; None where it is an image's."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def needed(self) -> list[Stage]:
        """The stages that the last one is made from, and itself, in the order of the file."""
        wanted: list[Stage] = [self.stages[-1]]
        for stage in wanted:
            sources = [stage.start, *re.findall(r"--from=(\S+)", " ".join(rest for _, rest in stage.steps))]
            wanted += [found for name in sources if (found := self.stage(name)) and found not in wanted]
        return [stage for stage in self.stages if stage in wanted]

    def last(self, instruction: str) -> str:
        """What the last instruction of that kind says in the last stage."""
        return [rest for name, rest in self.stages[-1].steps if name == instruction][-1]

    def environment(self) -> dict[str, str]:
        """What containers of the last stage find in their environment, with `$PATH` as it stands."""
        found: dict[str, str] = {}
        chain = [self.stages[-1]]
        while (before := self.stage(chain[0].start)) is not None:
            chain.insert(0, before)
        for stage in chain:
            for name, rest in stage.steps:
                if name == "ENV":
                    found |= assignments(rest)
        return found

    def command(self) -> list[str]:
        """CMD, in its exec form."""
        return exec_form(self.last("CMD"))

    def health(self) -> list[str]:
        """What HEALTHCHECK runs."""
        return exec_form(self.last("HEALTHCHECK").partition("CMD ")[2])


def read(image: str, chosen: Mapping[str, str] | None = None) -> Dockerfile:
    """The Dockerfile of an image, with build arguments chosen."""
    found = Dockerfile({}, [])
    for name, rest in instructions((CONTAINERS / f"{image}.Dockerfile").read_text()):
        if name == "FROM":
            start, _, stage = expand(rest, {**found.arguments, **(chosen or {})}).partition(" AS ")
            found.stages.append(Stage(stage, start))
        elif found.stages:
            found.stages[-1].steps.append((name, rest))
        else:
            found.arguments |= assignments(rest)
    return found


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Instruction by instruction, lines joined and comments left out."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def assignments(text: str) -> dict[str, str]:
    """`NAME=value NAME=value`; a name alone has no value, and is left out."""
    return {name: value.strip('"') for name, equals, value in (p.partition("=") for p in text.split()) if equals}


def expand(text: str, values: Mapping[str, str]) -> str:
    """With `$NAME` and `${NAME}` in place; what has no value stays."""
    return re.sub(r"\$\{?([A-Z_]+)\}?", lambda found: values.get(found[1], found[0]), text)


def exec_form(text: str) -> list[str]:
    """`["a", "b"]`. Raises ValueError for a command of a shell, which would keep signals to itself."""
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError(f"not in exec form: {text}")  # noqa: TRY004 (as for what is no JSON)
    return found
