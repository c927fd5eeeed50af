"""Text services in groups, one deployment per group of models: routes and clusters by a request's model.

REST requests name the model in their body, which Envoy reads before it becomes gRPC; typed calls in the header
`x-model`. Requests for a model without a group take the default route.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.settings.model_groups import ModelGroups

METADATA = "allm.request"  # the metadata in which Envoy keeps the fields it has read from a body
HEADER = "x-model"
PATHS = (
    "/allm.anthropic.v1.MessagesService/",
    "/allm.ollama.v1.TextService/",
    "/allm.openai.v1.TextService/",
    "/allm.openai.v1.ResponsesService/",
    "/allm.text.v1.",
)
# Those of the template's routes: a route without an idle timeout keeps that of the time before the body was whole.
TIMEOUTS = {"timeout": "0s", "idle_timeout": "3600s", "flush_timeout": "60s"}
NOTHING = ModelGroups()
_TRANSCODED = {"name": "x-envoy-original-path", "present_match": True}


@dataclass(frozen=True, slots=True)
class TextGroups:
    """The replicas' addresses and the models of each group."""

    addresses: tuple[tuple[str, tuple[str, ...]], ...] = ()  # by the group's name; without the default group
    models: ModelGroups = NOTHING

    def routes(self, policies: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns Envoy's routes in order of precedence. `policies`: retry policies, by group."""
        return [
            {
                "match": {"prefix": path, **match},
                "route": {"cluster": cluster_name(group), **TIMEOUTS, "retry_policy": policies[group]},
            }
            for group, wanted in self._wanted()
            for path in PATHS
            for match in (_in_body(wanted), _in_header(wanted))
        ]

    def _wanted(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields each group with a matcher for its models' names, as Envoy's `StringMatcher`."""
        here = [name for name, _ in self.addresses]
        for group in here:
            if names := self.models.exact(group):
                # Ollama's clients may add the tag `latest` to a name.
                yield group, {"safe_regex": {"regex": f"(?:{'|'.join(map(re.escape, names))})(?::latest)?"}}
        for prefix, group in self.models.prefixes():
            if group in here:
                yield group, {"prefix": prefix}


NO_GROUPS = TextGroups()


def cluster_name(group: str) -> str:
    """Returns the name of a group's cluster, which appears in errors and statistics."""
    return f"text-{group}"


def _in_body(wanted: dict[str, Any]) -> dict[str, Any]:
    value = {"string_match": wanted}
    return {"dynamic_metadata": [{"filter": METADATA, "path": [{"key": "model"}], "value": value}]}


def _in_header(wanted: dict[str, Any]) -> dict[str, Any]:
    """Matches typed calls only: a REST request names the model in its body, whatever its headers claim."""
    return {"headers": [{"name": HEADER, "string_match": wanted}, {**_TRANSCODED, "invert_match": True}]}
