"""The model provisioning of a service: follower, model set and reporter, put together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from services.models.descriptor import Modality
from services.models.runtime_choice import EngineRegistry
from services.models.store import ModelStore
from services.provision.follower import Follower, ModelSet
from services.provision.model_cache import ModelCache
from services.provision.preparation import Means
from services.provision.reporter import FigureReader, Reporter
from services.residency.manager import ModelManager
from services.rpc.channel import NOBODY, OwnIdentity
from services.settings.model_groups import GroupShare
from services.settings.settings import ModelSettings

EVERYTHING = GroupShare()
WARMING_SECONDS = 0.2  # between checks of the loaded models at the start
SYNC_SECONDS = 5.0  # how long the start waits for the catalog; after that it continues without models
# Reconnects quickly to a catalog that is back. Sends keepalive pings: a watch may be silent for days.
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
)


class Provision:
    """A running provision. Requests look models up in `store`."""

    def __init__(
        self,
        settings: ModelSettings,
        modality: Modality,
        registry: EngineRegistry,
        manager: ModelManager[Any],
        preload: tuple[str, ...] = (),
        own: OwnIdentity | None = None,
        share: GroupShare = EVERYTHING,
        figures: FigureReader | None = None,
    ) -> None:
        """`preload`: ids or aliases of models that are loaded once, as soon as they are ready. `own`: the identity
        presented to the catalog; None: none. `share`: the models served here. `figures`: the source of the work and
        memory figures for the catalog; None: reports none.
        """
        changed = asyncio.Event()
        manager.on_change = changed.set
        self._manager = manager
        self.store = ModelStore(settings.replica)
        model_cache = ModelCache(settings.folder)
        means = Means(
            settings=settings,
            registry=registry,
            manager=manager,
            store=self.store,
            model_cache=model_cache,
            changed=changed.set,
            preload=frozenset(preload),
        )
        self._model_set = ModelSet(means)
        self._channel = (own or NOBODY).channel(settings.catalog, CHANNEL_OPTIONS)
        self._follower = Follower(self._channel, modality, self._model_set, self.store, share)
        self.store.ask = self._follower.ask
        self._reporter = Reporter(self._channel, modality, registry, settings, self._model_set, changed, figures)
        self._following: asyncio.Task[None] | None = None
        self._reporting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts following and reporting; returns once all registrations are known, or after SYNC_SECONDS."""
        self._following = asyncio.create_task(self._follower.follow())
        self._reporting = asyncio.create_task(self._reporter.report())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._follower.synced.wait(), SYNC_SECONDS)

    async def warm(self) -> None:
        """Waits for the catalog, and until every model that belongs in memory is loaded or cannot be."""
        await self._follower.synced.wait()
        while self._model_set.is_warming():  # noqa: ASYNC110 - workers load, and send no event
            await asyncio.sleep(WARMING_SECONDS)

    def models(self) -> set[str]:
        """Returns the ids of all models that are registered or still in memory."""
        return {*(model.id for model in self.store), *(slot.key.model_id for slot in self._manager.slots())}

    async def leave(self) -> None:
        """Reports to the catalog that this replica takes no more requests."""
        if self._reporting:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
            self._reporting = None

    async def close(self) -> None:
        """Stops everything; files and registrations stay."""
        await self.leave()
        if self._following:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._model_set.close()
        await self._channel.close()
