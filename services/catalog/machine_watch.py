"""Samples of the machine: one every two seconds, a history of the last minutes, also on disk, and its watchers.

All watchers read the same history, so a slow one blocks nobody and needs no buffer. A watcher that falls too far behind
misses the oldest samples.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from services.catalog.machine import Machine, Sample
from services.catalog.machine_samples import MachineSamples
from services.catalog.replica_status import REPORT_WITHIN
from services.catalog.watches import OpenWatch, OpenWatches
from services.errors import Internal

log = logging.getLogger(__name__)

INTERVAL = REPORT_WITHIN  # seconds from one sample to the next: replicas report no more often
KEPT_SECONDS = 900.0
MOST_KEPT = 100_000  # entries of all samples; with over 200 hosts and devices less than KEPT_SECONDS are kept
MAX_WATCHERS = 100
SAVE_SECONDS = 10.0  # between two transactions; a crash loses as much


class SampleHistory:
    """The samples of the last minutes, numbered from 0."""

    def __init__(self, seconds: float = KEPT_SECONDS, most: int = MOST_KEPT) -> None:
        self._seconds = seconds
        self._most = most
        self._samples: deque[Sample] = deque()
        self._size = 0
        self.end = 0  # number of the next sample

    @property
    def begin(self) -> int:
        """Number of the oldest sample kept."""
        return self.end - len(self._samples)

    def add(self, sample: Sample) -> None:
        """Appends a sample and drops the oldest ones."""
        self._samples.append(sample)
        self._size += sample.size
        self.end += 1
        while len(self._samples) > 1 and not self._keeps(self._samples[0], sample.at):
            self._size -= self._samples.popleft().size

    def _keeps(self, oldest: Sample, now: float) -> bool:
        """Also drops samples from the future, in case the clock was set back."""
        return self._size <= self._most and 0 <= now - oldest.at <= self._seconds

    def __getitem__(self, number: int) -> Sample:
        """Returns that sample, or the oldest one kept. Raises IndexError for a sample not yet taken."""
        return self._samples[max(0, number - self.begin)]

    def since(self, seconds: float) -> int:
        """Returns the number of the first sample at most `seconds` older than the last; 0 seconds: the last one."""
        if not self._samples:
            return self.end
        oldest = self._samples[-1].at - seconds
        return next(self.begin + place for place, sample in enumerate(self._samples) if sample.at >= oldest)


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Marks the end of the past samples."""


class MachineWatch(OpenWatch[Sample | CaughtUp]):
    """A single watcher's position in the history."""

    def __init__(self, history: SampleHistory, seconds: float) -> None:
        super().__init__()
        self._history = history
        self._next = history.since(seconds)
        self._now = history.end  # the first number after the past
        self._marked = False

    def _take(self) -> Sample | CaughtUp | None:
        self._next = max(self._next, self._history.begin)
        if not self._marked and self._next >= self._now:
            self._marked = True
            return CaughtUp()
        if self._next == self._history.end:
            return None
        self._next += 1
        return self._history[self._next - 1]

    def notify(self) -> None:
        """Wakes the watcher: a sample was added."""
        self._wake.set()


class MachineWatchers:
    """Takes the samples, saves them and notifies all watchers. It needs a running loop; close it.

    `past`: samples of an earlier process, oldest first; `stored`: where later ones are saved, None: nowhere.
    """

    def __init__(self, machine: Machine, past: Iterable[Sample] = (), stored: MachineSamples | None = None) -> None:
        self._machine = machine
        self.history = SampleHistory()
        for sample in past:
            self.history.add(sample)
        self._stored = stored
        self._unsaved = self.history.end  # number of the first sample that is not saved
        self._open: OpenWatches[MachineWatch] = OpenWatches(MAX_WATCHERS, "the machine")
        self._tasks = [asyncio.create_task(self._sample()), asyncio.create_task(self._save_regularly())]

    def watch(self, seconds: float) -> AbstractContextManager[MachineWatch]:
        """Opens a watch for the duration of the block. `seconds`: how far back it begins; 0: at the last sample.

        Raises Overloaded when there are too many.
        """
        return self._open.open(lambda: MachineWatch(self.history, seconds))

    def tick(self) -> None:
        """Takes a sample now."""
        self.history.add(self._machine.sample())
        for watch in self._open:
            watch.notify()

    def end_watches(self) -> None:
        """Ends all watches, including any opened later."""
        self._open.close()

    async def close(self) -> None:
        """Ends all watches, stops sampling, and saves the last samples."""
        self.end_watches()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.save()

    async def save(self) -> None:
        """Saves the samples since the last call. Logs an error: the next call tries again."""
        if self._stored is None or self._unsaved == self.history.end:
            return
        end, first = self.history.end, max(self._unsaved, self.history.begin)
        oldest = self.history[self.history.begin].at
        try:
            await self._stored.save([self.history[number] for number in range(first, end)], oldest)
            self._unsaved = end
        except Internal as error:
            log.warning("the machine's samples cannot be saved: %s", error.message)
        except Exception:  # a bug must not end the saving
            log.exception("the machine's samples cannot be saved")

    async def _save_regularly(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self.save()

    async def _sample(self) -> None:
        due = time.monotonic()
        while True:
            try:
                self.tick()
            except Exception:  # a failed round must not end the sampling
                log.exception("unexpected error in a sample of the machine")
            due = max(due + INTERVAL, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
