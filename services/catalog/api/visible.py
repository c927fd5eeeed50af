"""The models that a caller may know of: all, but for a key with a list of its own."""

from __future__ import annotations

from services.auth.caller import current_caller
from services.catalog.replicas.model_view import Picture, View


def visible(picture: Picture, name: str) -> View:
    """The model of that id or alias. Raises ModelNotFound and ModelNotAllowed."""
    caller = current_caller()
    with caller.looking_for(name):
        view = picture.get(name)
    caller.check_model(name, *view.registration.names)
    return view


def all_visible(picture: Picture) -> list[View]:
    """All models that the caller may use, by id."""
    identity = current_caller().identity
    return [view for view in picture.all() if not identity.models or identity.may_use(*view.registration.names)]
