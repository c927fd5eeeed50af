"""Watches of the catalog: the base of all of them, and the watches of the models.

All open watches of one kind are limited in number, and end when the catalog stops. A watcher of the models gets all
models, a mark, and then every change. A slow watcher blocks nobody: it queues only the ids of changed models, and later
gets their state at that time. So its memory is bounded by the number of models, however slowly it reads.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from services.catalog import metrics
from services.catalog.model_view import ModelView, ModelViews
from services.errors import Overloaded
from services.models.descriptor import Modality

E = TypeVar("E")


class OpenWatch(ABC, Generic[E]):
    """A single watcher. A subclass stores changes, sets `_wake`, and makes events of them."""

    def __init__(self) -> None:
        self._closed = False
        self._wake = asyncio.Event()

    @abstractmethod
    def _take(self) -> E | None:
        """Returns the next event; None if there is none yet."""

    async def next(self) -> E | None:
        """Waits for the next event and returns it; None when the catalog stops."""
        while not self._closed:
            if (event := self._take()) is not None:
                return event
            self._wake.clear()
            await self._wake.wait()
        return None

    def close(self) -> None:
        """Ends the watch."""
        self._closed = True
        self._wake.set()


W = TypeVar("W", bound=OpenWatch[Any])


class OpenWatches(Generic[W]):
    """Up to `most` open watches. `of`: the thing watched, for errors; `count`: receives the number of open watches."""

    def __init__(self, most: int, of: str, count: Callable[[int], None] = lambda number: None) -> None:
        self._most = most
        self._of = of
        self._count = count
        self._watches: set[W] = set()
        self._closed = False

    @contextmanager
    def open(self, make: Callable[[], W]) -> Iterator[W]:
        """Opens a watch for the duration of the block. Raises Overloaded when there are too many."""
        if len(self._watches) >= self._most:
            raise Overloaded(f"{self._most} watches of {self._of} are open, which is the limit", retry_after=5)
        watch = make()
        self._watches.add(watch)
        self._count(len(self._watches))
        try:
            if self._closed:
                watch.close()
            yield watch
        finally:
            self._watches.discard(watch)
            self._count(len(self._watches))

    def __iter__(self) -> Iterator[W]:
        """Iterates over the open watches."""
        return iter(self._watches)

    def close(self) -> None:
        """Ends all watches, including any opened later."""
        self._closed = True
        for watch in self._watches:
            watch.close()


MAX_WATCHERS = 1000


@dataclass(frozen=True, slots=True)
class Changed:
    """A model that is new or has changed."""

    view: ModelView


@dataclass(frozen=True, slots=True)
class Removed:
    """The model with this id was deleted."""

    model_id: str


@dataclass(frozen=True, slots=True)
class Synced:
    """Marks the end of the snapshot from the beginning of the watch."""


Event = Changed | Removed | Synced


class Watch(OpenWatch[Event]):
    """A single watcher. `modality` None: all; `statuses`: whether replicas' reports count as changes."""

    def __init__(self, views: ModelViews, modality: Modality | None, statuses: bool) -> None:
        super().__init__()
        self._views = views
        self._modality = modality
        self._statuses = statuses
        self._sent: dict[str, tuple[object, ...]] = {}  # by id: the state of the model that the reader knows
        self._events: deque[Event] = deque()
        # The snapshot, then None for the mark. Changes meanwhile go to `_pending`.
        self._first: deque[str | None] = deque([*(view.id for view in views.all() if self._matches(view)), None])
        self._pending: dict[str, None] = {model_id: None for model_id in self._first if model_id is not None}

    def _take(self) -> Event | None:
        while not self._events:
            if self._first:
                model_id = self._first.popleft()
                if model_id is None:
                    return Synced()
                self._queue_events(model_id)
            elif self._pending:
                self._queue_events(next(iter(self._pending)))
            else:
                return None
        return self._events.popleft()

    def notify(self, model_ids: Iterable[str]) -> None:
        """Marks these models as changed and wakes the watcher."""
        for model_id in model_ids:
            if model_id in self._sent or self._views.has(model_id, self._modality):
                self._pending[model_id] = None
            else:  # it was created and deleted, and the reader never knew it
                self._pending.pop(model_id, None)
        self._wake.set()

    def _matches(self, view: ModelView) -> bool:
        return self._modality in (None, view.desired.facts.modality)

    def _queue_events(self, model_id: str) -> None:
        """Queues the events that bring the reader up to date on a model."""
        if model_id not in self._pending:
            return
        del self._pending[model_id]
        view = self._views.find(model_id)
        if view and not self._matches(view):
            view = None
        known = self._sent.get(model_id)
        if known and (view is None or view.registration.serial != known[0]):  # also if deleted and registered again
            del self._sent[model_id]
            self._events.append(Removed(model_id))
            known = None
        if view and known != (fields := self._watched_fields(view)):
            self._sent[model_id] = fields
            self._events.append(Changed(view))

    def _watched_fields(self, view: ModelView) -> tuple[object, ...]:
        """Returns the parts of a view whose change is an event."""
        known = (view.registration.serial, view.registration, view.desired.ready_replicas)
        return (*known, view.replicas, view.state, view.reason, view.runtime) if self._statuses else known


class Watchers(OpenWatches[Watch]):
    """All open watches of the models."""

    def __init__(self, views: ModelViews) -> None:
        super().__init__(MAX_WATCHERS, "models", metrics.WATCHERS.set)
        self._views = views

    def watch(self, modality: Modality | None, *, statuses: bool) -> AbstractContextManager[Watch]:
        """Opens a watch for the duration of the block. Raises Overloaded when there are too many."""
        return self.open(lambda: Watch(self._views, modality, statuses))

    def notify(self, model_ids: Iterable[str]) -> None:
        """Notifies all watchers of changed models."""
        ids = list(model_ids)
        for watch in self:
            watch.notify(ids)
