"""The end of a command that changes a model: waits for the goal, if there is one, and prints the outcome."""

from __future__ import annotations

from allm.models.v1 import model_pb2

from services.cli.models.document import document, print_document
from services.cli.models.page import Page
from services.cli.models.session import Session
from services.cli.models.stage import Goal, Stage
from services.cli.models.waiting import wait_until
from services.cli.models.words import reason_word
from services.cli.problem import Problem


def finish(at: Session, model: model_pb2.Model, goal: Goal | None, timeout: float, as_json: bool) -> None:
    """Waits until `goal` is reached, for at most `timeout` seconds (0: no limit), and prints the result.

    Raises:
        Problem: the model does not serve; the message says why.
    """
    reached: Stage | None = None
    if goal:
        model, reached = wait_until(at.catalog, model, goal, timeout or None)
    if as_json:
        print_document(document(model))
    if reached and not reached.serving:
        reason = reason_word(reached.reason, model.id) or "no reason is known"
        raise Problem(f"{model.id} is {reached.state}: {reason}")
    if reached and not as_json:
        means = " on ".join(part for part in (reached.runtime, reached.device) if part)
        Page().say(f"{model.id} is {reached.state}{f' ({means})' if means else ''}")
