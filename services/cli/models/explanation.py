"""Explains in sentences which runtime each replica uses for a model."""

from __future__ import annotations

from allm.models.v1 import model_service_pb2

from services.cli.models.page import Page
from services.cli.models.words import modality_word, state_word


def explain(page: Page, explained: model_service_pb2.ExplainModelResponse) -> None:
    """Prints one paragraph per replica."""
    model = explained.model
    reason = f": {model.reason}" if model.reason else ""
    page.say(f"{model.id} is {state_word(model.state)}{reason}.")
    if not explained.resolutions:
        page.say(f"No service for {modality_word(model.modality)} models is running, so nothing can run it now.")
    for resolution in explained.resolutions:
        page.heading(f"{resolution.replica} ({resolution.device})")
        for verdict in resolution.runtimes:
            page.say(_sentence(verdict))
        if not resolution.runtimes:
            page.say("It has no runtimes.")
        elif not any(verdict.chosen for verdict in resolution.runtimes):
            page.say("It takes none of them.")


def _sentence(verdict: model_service_pb2.RuntimeVerdict) -> str:
    if verdict.chosen:
        return f"It takes {verdict.runtime}: {verdict.reason}."
    if verdict.able:
        return f"Not {verdict.runtime}: {verdict.reason}."
    return f"{verdict.runtime} cannot run it: {verdict.reason}."
