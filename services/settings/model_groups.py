"""Model groups, for text services that run as several deployments with one group of models each.

The gateway sends a request to the group of the requested model, and each text service prepares only the models of its
own group. Both read the same setting, so that they agree.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from services.settings.setting import SettingError, split

VARIABLE = "ALLM_TEXT_GROUP_MODELS"
DEFAULT = ""  # the group of every model that no other group lists
GROUP_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_PATTERN = re.compile(r"[A-Za-z0-9._:/@+-]+\*?")
_SHAPE = "group=id,alias,prefix*;group=..., such as large=llama-70b,qwen*;code=coder*"


@dataclass(frozen=True, slots=True)
class ModelGroups:
    """Ids, aliases and prefixes (`prefix*`) by group; each is in one group."""

    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The groups without the default one."""
        return tuple(name for name, _ in self.groups)

    def exact(self, group: str) -> tuple[str, ...]:
        """Returns the full ids and aliases of a group."""
        return tuple(pattern for pattern in dict(self.groups)[group] if not pattern.endswith("*"))

    def prefixes(self) -> tuple[tuple[str, str], ...]:
        """Returns prefixes with their groups, the longest first, in order of precedence."""
        found = ((pattern[:-1], name) for name, patterns in self.groups for pattern in patterns if pattern[-1] == "*")
        return tuple(sorted(found, key=lambda entry: (-len(entry[0]), entry[0])))

    def group(self, name: str) -> str:
        """Returns the group that serves requests for an id or alias. A full name beats prefixes."""
        for group in self.names:
            if name in self.exact(group):
                return group
        return next((group for prefix, group in self.prefixes() if name.startswith(prefix)), DEFAULT)

    def serving(self, names: Iterable[str]) -> frozenset[str]:
        """Returns the groups that serve a model with these names: the default one only if no other does."""
        return frozenset(map(self.group, names)) - {DEFAULT} or frozenset({DEFAULT})


@dataclass(frozen=True, slots=True)
class GroupShare:
    """One service's share of all models: those of its group."""

    models: ModelGroups = ModelGroups()
    group: str = DEFAULT

    def holds(self, names: Collection[str]) -> bool:
        """Returns whether this service serves a model with this id and these aliases."""
        return self.group in self.models.serving(names)

    def elsewhere(self, name: str, names: Collection[str]) -> str:
        """Returns an error message for an operator: which groups serve the model `name`, and how calls reach them."""
        groups = " or ".join(repr(group) for group in sorted(self.models.serving(names)) if group) or "the default one"
        here = f"the group {self.group!r}" if self.group else "the default group"
        return (
            f"The model `{name}` is not served by {here} of text services, but by {groups}. Name the model "
            f"as {VARIABLE} lists it: in the body of a REST request, or in the metadata `x-model` of a gRPC call."
        )


def parse_groups(name: str, shape: str, value: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Parses `group=a,b;group2=c`, the value of the variable `name`.

    Raises:
        SettingError: it is malformed, or names a group twice.
    """
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, map(str.strip, value.split(";"))):
        group, _, members = part.partition("=")
        group, listed = group.strip(), split(members)
        if not GROUP_NAME.fullmatch(group) or not listed:
            allowed = f"{shape}; a group's name has up to 40 small letters, digits and hyphens"
            raise SettingError(name, part, allowed)
        if group in found:
            raise SettingError(name, part, f"a list that names each group once; {group!r} appears twice")
        found[group] = listed
    return tuple(found.items())


def parse_model_groups(value: str) -> ModelGroups:
    """Parses the groups of ALLM_TEXT_GROUP_MODELS.

    Raises:
        SettingError: it is malformed, or a name is in two groups.
    """
    groups = parse_groups(VARIABLE, _SHAPE, value)
    seen: dict[str, str] = {}
    for group, patterns in groups:
        for pattern in patterns:
            if not _PATTERN.fullmatch(pattern):
                raise SettingError(VARIABLE, pattern, "an id, an alias or prefix* of models")
            if seen.setdefault(pattern, group) != group:
                allowed = f"in one group only: both {seen[pattern]!r} and {group!r} name it"
                raise SettingError(VARIABLE, pattern, allowed)
    return ModelGroups(groups)
