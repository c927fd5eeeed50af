"""The models visible to a caller: all, unless its key is limited to some."""

from __future__ import annotations

from services.auth.caller import current_caller
from services.catalog.replicas.model_view import ModelView, ModelViews


def visible(views: ModelViews, name: str) -> ModelView:
    """Returns the model with that id or alias. Raises ModelNotFound and ModelNotAllowed."""
    caller = current_caller()
    with caller.looking_for(name):
        view = views.get(name)
    caller.check_model(name, *view.registration.names)
    return view


def all_visible(views: ModelViews) -> list[ModelView]:
    """Returns all models that the caller may use, by id."""
    identity = current_caller().identity
    return [view for view in views.all() if not identity.models or identity.may_use(*view.registration.names)]
