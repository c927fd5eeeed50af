"""Waits for a model and shows the progress, until success, failure, a timeout or Ctrl-C."""

from __future__ import annotations

from contextlib import closing

from allm.models.v1 import model_pb2

from services.cli.models.catalog import Catalog
from services.cli.models.connection import Late
from services.cli.models.progress import StageProgress
from services.cli.models.stage import Goal, Stage, stage
from services.cli.problem import Problem


class Interrupted(Problem):
    """Ctrl-C; the work that was begun continues without us."""


def wait_until(
    catalog: Catalog, model: model_pb2.Model, goal: Goal, seconds: float | None = None
) -> tuple[model_pb2.Model, Stage]:
    """Follows a model until `goal` is reached; returns the model and its stage at that time.

    Raises:
        Problem: the model was removed, or the catalog stays down, or the time limit has passed.
        Interrupted: Ctrl-C.
    """
    after = f"allm continues; `allm models show {model.id}` shows the progress"
    try:
        with StageProgress(model.id) as screen, closing(catalog.follow(model.id, seconds)) as changes:
            for current in changes:
                screen.show(stage(current, model.generation))
                if reached := goal(current):
                    return current, reached
    except Late:
        raise Problem(f"{model.id} is not done after {seconds:g} seconds; {after}") from None
    except KeyboardInterrupt:
        raise Interrupted(f"no longer waiting for {model.id}; {after}") from None
    raise Problem(f"the progress of {model.id} cannot be read")
