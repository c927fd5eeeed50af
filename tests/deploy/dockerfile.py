"""A Dockerfile parser for the parts of the language that ours use: stages, and their instructions, in order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONTAINERS = Path(__file__).parents[2] / "containers"
IMAGES = ("allm", "catalog", "gateway", "text", "text-vllm", "audio", "image")


@dataclass
class Stage:
    """The instructions between two FROMs."""

    name: str  # empty: an unnamed stage, such as the last one
    start: str  # its base: an image, or another stage
    steps: list[tuple[str, str]] = field(default_factory=list)  # instruction, and its argument


@dataclass
class Dockerfile:
    """A parsed file. `arguments`: those before the first FROM, with their defaults."""

    arguments: dict[str, str]
    stages: list[Stage]

    def stage(self, name: str) -> Stage | None:
        """Returns the stage of that name; None for an image's name."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def needed(self) -> list[Stage]:
        """Returns the stages that the last one depends on, and itself, in the order of the file."""
        wanted: list[Stage] = [self.stages[-1]]
        for stage in wanted:
            sources = [stage.start, *re.findall(r"--from=(\S+)", " ".join(rest for _, rest in stage.steps))]
            wanted += [found for name in sources if (found := self.stage(name)) and found not in wanted]
        return [stage for stage in self.stages if stage in wanted]

    def last(self, instruction: str) -> str:
        """Returns the argument of the last instruction of that kind in the last stage."""
        return [rest for name, rest in self.stages[-1].steps if name == instruction][-1]

    def environment(self) -> dict[str, str]:
        """Returns the environment of the last stage's containers, with `$PATH` unexpanded."""
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
        """Returns CMD, which must be in exec form."""
        return exec_form(self.last("CMD"))

    def health(self) -> list[str]:
        """Returns the command of HEALTHCHECK."""
        return exec_form(self.last("HEALTHCHECK").partition("CMD ")[2])


def read(image: str, chosen: Mapping[str, str] | None = None) -> Dockerfile:
    """Parses the Dockerfile of an image, with these build arguments."""
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
    """Yields each instruction with its argument, continuation lines joined, comments removed."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def assignments(text: str) -> dict[str, str]:
    """Parses `NAME=value NAME=value`; skips a name without a value."""
    return {name: value.strip('"') for name, equals, value in (p.partition("=") for p in text.split()) if equals}


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replaces `$NAME` and `${NAME}`; names without a value stay."""
    return re.sub(r"\$\{?([A-Z_]+)\}?", lambda found: values.get(found[1], found[0]), text)


def exec_form(text: str) -> list[str]:
    """Parses `["a", "b"]`. Raises ValueError for a shell command, because a shell would not forward signals."""
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError(f"not in exec form: {text}")  # noqa: TRY004 (as for what is no JSON)
    return found
