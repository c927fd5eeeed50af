"""Waiting for a model: shown while it lasts, ended by its success, its failure, its time or Ctrl-C."""

from __future__ import annotations

from contextlib import closing

from allm.models.v1 import model_pb2

from services.cli.models.catalog import Catalog
from services.cli.models.connection import Late
from services.cli.models.progress import StageProgress
from services.cli.models.stage import Goal, Stage, stage
from services.cli.problem import Problem


class Interrupted(Problem):
    """Ctrl-C; what was begun goes on without us."""


def wait_until(
    catalog: Catalog, model: model_pb2.Model, goal: Goal, seconds: float | None = None
) -> tuple[model_pb2.Model, Stage]:
    """Follows a model until `goal` is content; gives the model as it is then, and the stage it has reached.

    Raises:
        Problem: the model was removed, or the catalog stays away, or so many seconds have passed.
        Interrupted: Ctrl-C.
    """
    after = f"allm goes on with it; `allm models show {model.id}` tells how far it is"
    try:
        with StageProgress(model.id) as screen, closing(catalog.follow(model.id, seconds)) as changes:
            for current in changes:
                screen.show(stage(current, model.generation))
                if reached := goal(current):
                    return current, reached
    except Late:
        raise Problem(f"{model.id} is not there yet after {seconds:g} seconds; {after}") from None
    except KeyboardInterrupt:
        raise Interrupted(f"no longer waiting for {model.id}; {after}") from None
    raise Problem(f"{model.id} cannot be followed")
