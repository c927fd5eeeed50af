"""Restores a model's state after a command has changed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from allm.models.v1 import manifest_pb2

from services.cli.models.catalog import Catalog
from services.cli.problem import Problem


@contextmanager
def restored_afterwards(catalog: Catalog, model_id: str, say: Callable[[str], None]) -> Iterator[None]:
    """Restores the operator's choices afterwards: the runtime, and whether the model stays in memory.

    Raises:
        Problem: the model was removed.
    """
    before = _desired(catalog, model_id)
    try:
        yield
    finally:
        say(f"restoring the state of {model_id}")
        if before.model.keep_loaded:
            catalog.load(model_id, before.runtime)
        else:
            catalog.unload(model_id)
            if _desired(catalog, model_id).runtime != before.runtime:
                catalog.load(model_id, before.runtime)
                catalog.unload(model_id)


def _desired(catalog: Catalog, model_id: str) -> manifest_pb2.DesiredModel:
    for desired in catalog.snapshot():
        if desired.model.id == model_id:
            return desired
    raise Problem(f"{model_id} was removed")
