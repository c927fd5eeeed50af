"""Explains in sentences which runtime each replica uses for a model."""

from __future__ import annotations

from allm.models.v1 import model_pb2, model_service_pb2

from services.cli.models.listing import canonical_word
from services.cli.models.page import Page
from services.cli.models.words import modality_word, state_word


def explain(page: Page, explained: model_service_pb2.ExplainModelResponse) -> None:
    """Prints one paragraph per replica."""
    model = explained.model
    reason = f": {model.reason}" if model.reason else ""
    page.say(f"{model.id} is {state_word(model.state)}{reason}.")
    if not explained.resolutions:
        page.say(f"No service for {modality_word(model.modality)} models is running, so it cannot run now.")
    for resolution in explained.resolutions:
        page.heading(f"{resolution.replica} ({resolution.device})")
        for verdict in resolution.runtimes:
            page.say(_sentence(verdict, resolution.device))
        if not resolution.runtimes:
            page.say("It has no runtimes.")
        elif not any(verdict.chosen for verdict in resolution.runtimes):
            page.say("It uses none of them.")
        for replica in model.replicas:
            if replica.replica == resolution.replica and replica.artifact:
                page.say(_own_files(replica))


def _sentence(verdict: model_service_pb2.RuntimeVerdict, device: str) -> str:
    """`device`: the replica's; a runtime that computes on another one says so."""
    if verdict.chosen:
        own = f" on {verdict.device}" if verdict.device not in ("", device) else ""
        return f"It uses {verdict.runtime}{own}: {verdict.reason}."
    if verdict.able:
        return f"It does not use {verdict.runtime}: {verdict.reason}."
    return f"{verdict.runtime} cannot run it: {verdict.reason}."


def _own_files(replica: model_pb2.ReplicaStatus) -> str:
    if not replica.HasField("canonical"):
        return "It does not keep the model's own files: they are local, or ALLM_KEEP_CANONICAL is off."
    return f"It also keeps the model's own files: {canonical_word(replica.canonical)}."
