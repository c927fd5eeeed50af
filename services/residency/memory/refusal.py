"""Why a model was not let into memory."""

from __future__ import annotations

from services.errors import ModelNotReady, OutOfMemory


class NeverFits(OutOfMemory):
    """It needs more than may ever be free for it: a budget, or the machine. Asking again changes nothing."""


class NoRoom(OutOfMemory):
    """It does not fit now, beside what is in use; it may later."""


class TooManyModels(ModelNotReady):
    """As many models as are allowed are in memory, and all of them are in use."""
