"""The reasons for which admission refuses a model."""

from __future__ import annotations

from services.errors import ModelNotReady, OutOfMemory


class NeverFits(OutOfMemory):
    """The model exceeds a budget or the machine. Retrying does not help."""


class NoRoom(OutOfMemory):
    """The model does not fit next to the models in use; it may fit later."""


class TooManyModels(ModelNotReady):
    """As many models as allowed are in memory, and all of them are in use."""
