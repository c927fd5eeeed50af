"""Admission of models to memory: makes room and reserves it before a worker starts.

The estimate is compared with the budgets, and with the free memory below the threshold minus what other loads have
reserved but not used yet (readings.py). If it does not fit, the least recently used idle models of any service on the
host are unloaded, provided that this suffices: the eviction plan lists these victims, and the holders worth waiting
for. If only models in use are in the way, the load waits a few seconds for one of them; otherwise it is refused. Loads
take turns for an attempt only, never while they load.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.byte_count import bytes_word
from services.errors import AllmError
from services.models.descriptor import ModelDescriptor
from services.models.runtimes import RuntimeSpec
from services.residency.manager import ModelManager
from services.residency.memory.device_memory import why_unreadable
from services.residency.memory.ledger import Ledger, LedgerSync
from services.residency.memory.memory_estimate import (
    HOST,
    MemoryEstimate,
    budget_of,
    device_word,
    share_of,
)
from services.residency.memory.peer import ask_to_release
from services.residency.memory.readings import Readings
from services.residency.memory.reservation import Full, NeverFits, NoRoom, Reservation, TooManyModels
from services.residency.slot import Slot
from services.rpc.channel import NOBODY, OwnIdentity
from services.settings.settings import ResidencySettings

log = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds that a load waits for a model in use to become idle
LOOK_AGAIN = 0.2  # seconds between two attempts
ROUNDS = 8  # reservations tried per attempt: each after the first follows an eviction, or one that was refused
MAX_NAMED = 4  # models of a kind that a message lists
PEER_SECONDS = 5.0  # a neighbour that has not unloaded by then is skipped

Needed = Callable[[ModelDescriptor, RuntimeSpec], MemoryEstimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPlan:
    """The holders of memory on devices that are too full, by state; the least recently used first."""

    missing: Mapping[str, int]  # bytes that must become free, by device
    idle: Sequence[Reservation]
    busy: Sequence[Reservation]  # in use, loading, or being unloaded
    staying: Sequence[Reservation]  # pinned, or excluded for another reason

    @property
    def victims(self) -> list[Reservation]:
        """The idle models to unload, as few as suffice; empty if all of them together do not suffice.

        The least recently used go first. One of them stays if a larger one, chosen after it, makes its eviction
        unnecessary.
        """
        chosen: list[Reservation] = []
        for holder in self.idle:
            if self._covered(chosen):
                break
            if any(holder.devices.get(device) for device in self.missing):
                chosen.append(holder)
        if not self._covered(chosen):
            return []
        for holder in reversed(chosen.copy()):
            if self._covered(rest := [one for one in chosen if one is not holder]):
                chosen = rest
        return chosen

    @property
    def hopeful(self) -> bool:
        """True if the model would fit once the models that are in use now are idle."""
        return self._covered([*self.idle, *self.busy])

    def words(self) -> str:
        """Returns the holders of memory as text for a refusal's message."""
        kinds = (("could be unloaded", self.idle), ("in use", self.busy), ("to stay in memory", self.staying))
        listed = [f"{name}: {_names(holders)}" for name, holders in kinds if holders]
        return "; ".join(listed) or "no model holds any of it"

    def _covered(self, going: Iterable[Reservation]) -> bool:
        going = list(going)
        return all(
            sum(one.devices.get(device, 0) for one in going) >= wanted for device, wanted in self.missing.items()
        )


def look_ahead(
    missing: Mapping[str, int],
    holders: Iterable[Reservation],
    stays: Callable[[Reservation], bool],
    refused: Callable[[Reservation], bool],
) -> EvictionPlan:
    """Sorts the holders by state. A holder for which `stays` is true is never a victim. One for which `refused` is true
    counts as in use: its owner has refused to unload it."""
    idle: list[Reservation] = []
    busy: list[Reservation] = []
    staying: list[Reservation] = []
    for holder in holders:
        if stays(holder) or holder.pinned:
            staying.append(holder)
        else:
            (idle if holder.idle and not refused(holder) else busy).append(holder)
    return EvictionPlan(missing=missing, idle=idle, busy=busy, staying=staying)


def _names(holders: Sequence[Reservation]) -> str:
    named = [f"{one.key.model_id} ({bytes_word(sum(one.devices.values()))})" for one in holders[:MAX_NAMED]]
    more = len(holders) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


class _NotNow(Exception):
    """A failed attempt. `hopeful`: a later one may succeed soon."""

    def __init__(self, problem: AllmError, *, hopeful: bool) -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.hopeful = hopeful


class Admission:
    """The gate of a service's manager. `replica`: its name, for the logs of neighbours that are asked to unload.
    `patience`: seconds that a load may wait for room. `own`: the identity presented to neighbours.
    """

    def __init__(
        self,
        manager: ModelManager[Any],
        ledger: Ledger,
        ledger_sync: LedgerSync,
        needed: Needed,
        settings: ResidencySettings,
        readings: Readings,
        replica: str = "",
        patience: float = PATIENCE,
        own: OwnIdentity = NOBODY,
    ) -> None:
        self._manager = manager
        self._ledger = ledger
        self._ledger_sync = ledger_sync
        self._needed = needed
        self._settings = settings
        self._readings = readings
        self._replica = replica
        self._patience = patience
        self._own = own
        self._turn = asyncio.Lock()  # held for one attempt; evictions and loads do not take it
        self.stopped: Mapping[str, str] = {}  # devices that admit nothing now -> the reason

    async def enter(self, slot: Slot[Any]) -> None:
        """Reserves memory for a model, in `slot.reservation`. A cancelled call leaves nothing reserved.

        Raises:
            NeverFits, NoRoom: there is not enough memory; the message names the needed and the free memory, and the
                holders of the rest. NeverFits also if the memory of the device cannot be read.
            TooManyModels: the service has ALLM_MAX_LOADED_MODELS models in memory, and all are in use.
            Internal: the ledger cannot be used.
        """
        estimate = await asyncio.to_thread(self._estimate, slot)
        await self._refresh(estimate)
        await asyncio.to_thread(self._check, slot, estimate)
        now = asyncio.get_running_loop().time
        deadline = now() + self._patience
        refusals: dict[str, float] = {}  # reservations whose owner refused -> their `last_used` at that time
        while True:
            try:
                async with self._turn:
                    slot.reservation = await self._attempt(slot, estimate, refusals)
            except _NotNow as attempt:
                if not attempt.hopeful or now() >= deadline:
                    raise attempt.problem from None
            else:
                return
            await asyncio.sleep(LOOK_AGAIN)

    async def leave(self, slot: Slot[Any]) -> None:
        """Releases the reservation, if any. Never raises."""
        reservation, slot.reservation = slot.reservation, None
        if reservation:
            await self._ledger.release(reservation)

    # --- the estimate

    def _estimate(self, slot: Slot[Any]) -> MemoryEstimate:
        """Estimates a model's memory. Falls back to the files' size if unreadable: the load reports the error."""
        try:
            return self._needed(slot.descriptor, slot.runtime)
        except Exception as error:
            extra = {"model": slot.key.model_id, "reason": str(error)}
            log.warning("cannot estimate a model's memory from its files: using their size", extra=extra)
            return MemoryEstimate({HOST: slot.descriptor.size})

    async def _refresh(self, estimate: MemoryEstimate) -> None:
        """Reads the GPUs of a model again on which no model is, if their figures are not live."""
        held = {device for row in await self._ledger.all() for device in row.devices}
        for device in estimate.devices.keys() - held:
            await self._readings.refresh(device)

    def _check(self, slot: Slot[Any], estimate: MemoryEstimate) -> None:
        """Raises NeverFits if the model exceeds a budget or the machine, so that no eviction helps, and if the memory
        of its device cannot be read: without figures nothing is admitted.
        """
        settings, name = self._settings, slot.key.model_id
        if 0 < settings.model_bytes < estimate.total:
            raise NeverFits(
                f"{name} needs {estimate}; "
                f"one model may take {bytes_word(settings.model_bytes)} (ALLM_MODEL_MEMORY_BYTES)"
            )
        totals = self._readings.read().totals()
        for device, wanted in estimate.devices.items():
            if device not in totals and wanted > 0:
                why = f"the memory of {device} cannot be read: {why_unreadable(device)}"
                raise NeverFits(f"{name} needs {estimate}; {why}")
            total, _ = totals.get(device, (0, 0))
            budget, variable = budget_of(device, self._settings)
            if 0 < budget < wanted:
                limit = f"all models may take {bytes_word(budget)} ({variable})"
            elif 0 < (usable := total * share_of(device, settings.threshold)) < wanted:
                share = f"{bytes_word(usable)} of {bytes_word(total)}"
                limit = f"{share} may be used (ALLM_MEMORY_THRESHOLD)"
            else:
                continue
            raise NeverFits(f"{name} needs {estimate}; of {device_word(device)} {limit}")

    # --- one attempt

    async def _attempt(self, slot: Slot[Any], estimate: MemoryEstimate, refusals: dict[str, float]) -> Reservation:
        for device, why in self.stopped.items():
            if estimate.devices.get(device):
                raise _NotNow(NoRoom(f"{slot.key.model_id} needs {estimate}; {why}"), hopeful=True)
        await self._keep_count(slot)
        await self._ledger_sync.update()
        for _ in range(ROUNDS):
            try:
                return await self._ledger.reserve(slot.key, estimate, lambda: self._readings.capacity(self._settings))
            except Full as full:
                eviction_plan = self._look(slot, full, refusals)
            if not eviction_plan.victims:
                break
            for victim in eviction_plan.victims:
                if await self._ask(victim) is None:
                    refusals[victim.id] = victim.last_used
                    break  # the next round checks whether the others still suffice and are idle
        raise _NotNow(_no_room(slot, estimate, eviction_plan), hopeful=eviction_plan.hopeful)

    def _look(self, slot: Slot[Any], full: Full, refusals: Mapping[str, float]) -> EvictionPlan:
        own = {row.id: row for row in self._ledger_sync.rows()}
        current = {one.reservation.id for one in self._same(slot) if one.reservation}
        holders = sorted((own.get(one.id, one) for one in full.holders), key=lambda one: one.last_used)
        return look_ahead(
            full.missing,
            holders,
            stays=lambda one: one.id in current,
            refused=lambda one: refusals.get(one.id) == one.last_used,
        )

    def _same(self, slot: Slot[Any]) -> list[Slot[Any]]:
        """Returns the slots of the model's other serving generations. They are not evicted for a new generation:
        services/provision/preparation.py decides that.
        """
        everything = self._manager.slots()
        same = [one for one in everything if one is not slot and one.key.model_id == slot.key.model_id]
        return [one for one in same if self._manager.slot(one.key) is one]

    async def _ask(self, victim: Reservation) -> int | None:
        """Unloads a model of this service, or asks a neighbour to. Returns the freed bytes; None if the model stays."""
        for slot in self._manager.slots():
            if slot.reservation and slot.reservation.id == victim.id:
                return await self._manager.evict(slot.key, "admission")
        log.info("asking another service to unload", extra={"model": victim.key.model_id, "replica": victim.replica})
        return await ask_to_release(victim, PEER_SECONDS, self._replica, self._own)

    async def _keep_count(self, slot: Slot[Any]) -> None:
        """Keeps the number of models within ALLM_MAX_LOADED_MODELS."""
        most = self._settings.max_models
        while most:
            admitted = [one for one in self._manager.slots() if one is not slot and one.reservation]
            if len(admitted) < most:
                return
            same = self._same(slot)
            others = [one for one in admitted if one not in same]
            idle = sorted((one for one in others if self._manager.evictable(one.key)), key=lambda one: one.order)
            if not idle or await self._manager.evict(idle[0].key, "max_models") is None:
                problem = TooManyModels(
                    f"{slot.key.model_id} is not loaded: {len(admitted)} models are in memory and in use, and no more "
                    f"than {most} may be (ALLM_MAX_LOADED_MODELS)"
                )
                raise _NotNow(problem, hopeful=any(not self._manager.pinned(one.key.model_id) for one in others))


def _no_room(slot: Slot[Any], estimate: MemoryEstimate, eviction_plan: EvictionPlan) -> NoRoom:
    free = " and ".join(
        f"{bytes_word(max(0, estimate.devices.get(device, 0) - short))} of {device_word(device)}"
        for device, short in eviction_plan.missing.items()
    )
    return NoRoom(f"{slot.key.model_id} needs {estimate}; free: {free}; {eviction_plan.words()}")
