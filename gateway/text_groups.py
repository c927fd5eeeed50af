"""Text services in groups, one deployment for each group of models: routes and clusters by the model of a request.

REST requests name it in their body, which Envoy reads before it becomes gRPC; typed calls in the header `x-model`. What
belongs to no group goes the usual way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.settings.model_groups import ModelGroups

METADATA = "allm.request"  # where Envoy keeps what it has read of a body
HEADER = "x-model"
PATHS = ("/allm.openai.v1.TextService/", "/allm.openai.v1.ResponsesService/", "/allm.text.v1.")
NOTHING = ModelGroups()
_TRANSCODED = {"name": "x-envoy-original-path", "present_match": True}


@dataclass(frozen=True, slots=True)
class TextGroups:
    """Where the replicas of each group are, and which models are theirs."""

    addresses: tuple[tuple[str, tuple[str, ...]], ...] = ()  # by the group's name; the default group is not among them
    models: ModelGroups = NOTHING

    def routes(self, policies: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Envoy's routes, those that count first before the others. `policies`: of retries, by group."""
        return [
            {
                "match": {"prefix": path, **match},
                "route": {"cluster": cluster_name(group), "timeout": "0s", "retry_policy": policies[group]},
            }
            for group, wanted in self._wanted()
            for path in PATHS
            for match in (_in_body(wanted), _in_header(wanted))
        ]

    def _wanted(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Groups with what a model's name must be for them, as Envoy's `StringMatcher`."""
        here = [name for name, _ in self.addresses]
        for group in here:
            if names := self.models.exact(group):
                yield group, {"safe_regex": {"regex": "|".join(map(re.escape, names))}}
        for prefix, group in self.models.prefixes():
            if group in here:
                yield group, {"prefix": prefix}


NO_GROUPS = TextGroups()


def cluster_name(group: str) -> str:
    """A group's cluster, which errors and statistics name."""
    return f"text-{group}"


def _in_body(wanted: dict[str, Any]) -> dict[str, Any]:
    value = {"string_match": wanted}
    return {"dynamic_metadata": [{"filter": METADATA, "path": [{"key": "model"}], "value": value}]}


def _in_header(wanted: dict[str, Any]) -> dict[str, Any]:
    """Of typed calls only: a REST request's body says it, whatever else its headers claim."""
    return {"headers": [{"name": HEADER, "string_match": wanted}, {**_TRANSCODED, "invert_match": True}]}
