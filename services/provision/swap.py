"""The swap of a model's generations in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from services.errors import OutOfMemory
from services.models.store import ServedGeneration
from services.residency.manager import ModelManager
from services.residency.memory.reservation import NeverFits, TooManyModels, resident_key

log = logging.getLogger(__name__)


async def load_in_parallel(manager: ModelManager[Any], new: ServedGeneration, step_down: Callable[[str], None]) -> None:
    """Loads a new generation while the old one serves; if both do not fit into memory, unloads the old one first.

    `step_down` is called with the reason as soon as that is known: from then on the old one must get no new requests,
    and this waits for its running ones.

    Raises what loading raises. After `step_down` the old one is no longer in memory, but could be loaded again.
    """
    descriptor = new.descriptor
    try:
        await manager.load(descriptor, new.runtime)
    except NeverFits:
        raise
    except (OutOfMemory, TooManyModels) as problem:
        extra = {"model": descriptor.id, "generation": descriptor.generation, "reason": problem.message}
        log.warning("both generations do not fit: the old one ends first", extra=extra)
        step_down(
            f"{descriptor.id} is changing to generation {descriptor.generation}; the old one is unloaded first, "
            f"because both do not fit into memory: {problem.message}"
        )
    else:
        return
    # Shielded: even if another update comes meanwhile, running requests on the old generation end normally.
    await asyncio.shield(manager.retire(descriptor.id, keep=resident_key(descriptor, new.runtime)))
    await manager.load(descriptor, new.runtime)
