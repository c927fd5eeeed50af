"""Converts searches of the hub from protobuf, and their results to protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allm.models.v1 import model_service_pb2

from services.catalog.hub_fit import Fit, HubFit
from services.catalog.registration.hub_search import HubFinding
from services.catalog.registration.register import read_format
from services.errors import InvalidRequest
from services.models.descriptor import Format

MAX_QUERY = 200  # characters
MOST_REPOSITORIES = 30
USUAL_REPOSITORIES = 10
_FITS: Mapping[Fit, model_service_pb2.HubFit.ValueType] = {
    "unknown": model_service_pb2.HUB_FIT_UNSPECIFIED,
    "fits": model_service_pb2.HUB_FIT_FITS,
    "needs_room": model_service_pb2.HUB_FIT_NEEDS_ROOM,
    "too_large": model_service_pb2.HUB_FIT_TOO_LARGE,
    "unsupported": model_service_pb2.HUB_FIT_UNSUPPORTED,
}


def read_search(request: model_service_pb2.SearchHubRequest) -> tuple[str, Format, int]:
    """Returns the words, the format and the limit of a search. Raises InvalidRequest; `param` names the field."""
    words = request.query.strip()
    if len(words) > MAX_QUERY or not words.isprintable():
        raise InvalidRequest(f"'query' may have at most {MAX_QUERY} printable characters", param="query")
    if not 0 <= request.limit <= MOST_REPOSITORIES:
        raise InvalidRequest(f"'limit' must be from 1 to {MOST_REPOSITORIES}, not {request.limit}", param="limit")
    return words, read_format(request.format), request.limit or USUAL_REPOSITORIES


def repository_message(finding: HubFinding, fits: Sequence[HubFit]) -> model_service_pb2.HubRepository:
    """Converts a repository, with the outlook of each of its models."""
    found = finding.repository
    recommended = recommend(finding, fits)
    return model_service_pb2.HubRepository(
        name=found.name,
        license=found.license,
        gated=found.gated,
        downloads=found.downloads,
        likes=found.likes,
        task=found.task,
        reason=finding.reason,
        choices=[
            model_service_pb2.HubChoice(
                source=choice.source,
                id=choice.id,
                label=choice.label,
                size_bytes=choice.facts.size,
                memory_bytes=fit.memory,
                fit=_FITS[fit.fit],
                reason=fit.reason,
                recommended=place == recommended,
            )
            for place, (choice, fit) in enumerate(zip(finding.choices, fits, strict=True))
        ],
    )


def recommend(finding: HubFinding, fits: Sequence[HubFit]) -> int | None:
    """Returns the place of the proposed model: the usual one, or the largest below it that may fit; None: none."""
    usual = next((place for place, choice in enumerate(finding.choices) if choice.usual), -1)
    possible = [place for place in range(usual + 1) if fits[place].fit in ("fits", "needs_room", "unknown")]
    return possible[-1] if possible else None
