"""Background responses: their generation, their heartbeat, and the detection of cancelled ones."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import msgspec

from services.errors import AllmError, Internal, StoreUnavailable
from services.rpc.deadline import keep_deadline
from services.telemetry import metrics
from services.text.responses.response import Event, Failure, Item, Progress, Response, failure_of
from services.text.responses.run import Run
from services.text.responses.store import ResponseStore

log = logging.getLogger(__name__)

AT_ONCE = 8  # responses that one replica generates concurrently; the rest of its capacity is for foreground requests
BEAT_SECONDS = 0.5  # also the longest time that a cancelled response keeps running
AWAY_SECONDS = 30.0  # the longest time that a response keeps running while its store is unreachable
FLUSH_SECONDS = 0.1  # the longest time that events are buffered before they are written together

Running = Callable[[Response], AbstractAsyncContextManager[Run]]


class Background:
    """The responses that this process generates in the background."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._runner = secrets.token_hex(8)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._jobs: dict[str, _Job] = {}
        self._beating: asyncio.Task[None] | None = None
        self._closing = False

    async def start(self, client: str, response: Response, given: Sequence[Item], running: Running) -> None:
        """Stores a queued response and generates it when a slot is free. Raises Overloaded."""
        if self._closing:
            raise Internal("the service is being stopped")
        await self._store.add_background(client, response, given, self._runner)
        record = _Record(self._store, response)
        task = asyncio.create_task(self._make(client, record, running))
        self._jobs[response.id] = _Job(task, record)
        task.add_done_callback(lambda _: self._jobs.pop(response.id, None))
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._beat())

    def stop(self, response_id: str) -> None:
        """Stops a response immediately if this process generates it; the caller updates the store."""
        if job := self._jobs.get(response_id):
            job.task.cancel()

    async def close(self) -> None:
        """Stops all responses; unfinished ones fail."""
        self._closing = True
        tasks = [job.task for job in self._jobs.values()]
        if self._beating:
            tasks.append(self._beating)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, client: str, record: _Record, running: Running) -> None:
        started = time.monotonic()
        keep_deadline(None)  # drop the deadline of the call that ordered the response
        try:
            queued = record.response
            await record.take([Progress("created", queued), Progress("queued", queued)], queued)
            async with self._places, running(msgspec.structs.replace(queued, status="in_progress")) as run:
                async for events in run.events():
                    if not await record.take(events, run.response):
                        return
        except AllmError as error:
            await record.fail(failure_of(error))
        except asyncio.CancelledError:
            if self._closing:
                why = Failure(code="INTERNAL", message="the service was stopped; try again")
                await record.fail(why, wait=False)
            raise
        except Exception:
            log.exception("unexpected error in the background")
            await record.fail(Failure(code="INTERNAL", message="internal error; the service's log has it"))
        response = record.response
        if response.failure:
            metrics.ERRORS.labels("Background", response.failure.code, response.model).inc()
        facts = {"client": client, "model": response.model, "status": response.status}
        log.info("background response ended", extra={**facts, "ms": round((time.monotonic() - started) * 1000)})

    async def _beat(self) -> None:
        while self._jobs:
            await asyncio.sleep(BEAT_SECONDS)
            jobs = list(self._jobs.items())
            try:
                wanted = await self._store.beat(self._runner, [response_id for response_id, _ in jobs])
            except StoreUnavailable:
                continue  # the store has logged it
            except AllmError:
                log.exception("the store of responses cannot record that this process is alive")
                continue
            for response_id, job in jobs:
                if response_id not in wanted and job.record.response.running:  # cancelled or deleted
                    job.task.cancel()


class _Job(NamedTuple):
    """A response that this process generates."""

    task: asyncio.Task[None]
    record: _Record


class _Record:
    """Writes the events and the state of one response to the store, at most once per FLUSH_SECONDS.

    If the store is unreachable, it buffers them for at most AWAY_SECONDS.
    """

    def __init__(self, store: ResponseStore, response: Response) -> None:
        self.response = response  # its current state
        self._store = store
        self._status = ""
        self._events: list[Event] = []
        self._written = 0
        self._next_write = 0.0
        self._away_since: float | None = None

    async def take(self, events: Sequence[Event], response: Response, *, wait: bool = True) -> bool:
        """Records events and the state after them. Returns False if the response was cancelled or deleted.

        If the store is unreachable, `wait` decides if the end waits for it. Raises StoreUnavailable.
        """
        self.response = response
        if response.settings.streamed:
            self._events += events
        due = response.status != self._status and (self._away_since is None or not response.running)
        if not due and time.monotonic() < self._next_write:
            return True
        while True:
            try:
                return await self._write()
            except StoreUnavailable:
                now = time.monotonic()
                self._away_since = self._away_since or now
                if not wait or now - self._away_since > AWAY_SECONDS:
                    raise
                self._next_write = now + BEAT_SECONDS
                if response.running:  # the next events are written together with these
                    return True
                await asyncio.sleep(BEAT_SECONDS)

    async def fail(self, failure: Failure, *, wait: bool = True) -> None:
        """Ends the response with an error. If the store does not accept it, the response becomes an orphan."""
        failed = msgspec.structs.replace(self.response, status="failed", failure=failure)
        try:
            await self.take([Progress("failed", failed)], failed, wait=wait)
        except AllmError:
            log.exception("the end of a response cannot be kept")

    async def _write(self) -> bool:
        self._next_write = time.monotonic() + FLUSH_SECONDS
        if not self._events and self.response.status == self._status:
            return True
        events = list(self._events)
        wanted = await self._store.advance(self.response, events, self._written)
        del self._events[: len(events)]
        self._written += len(events)
        self._status = self.response.status
        self._away_since = None
        return wanted
