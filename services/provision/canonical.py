"""A model's canonical files: its own ones, kept while an official execution cache serves (ALLM_KEEP_CANONICAL).

They are fetched once the cache is ready, for one model at a time, and are spare: the model cache drops them as soon as
a model needs their room in order to serve.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from services.models.desired import DesiredModel
from services.models.manifest import Manifest
from services.models.status import CanonicalStatus, State
from services.provision.fetch import FetchProblem, FetchProgress, fetch
from services.provision.model_cache import ModelCache
from services.provision.plan import ModelPlan
from services.rpc.deadline import ended
from services.settings.settings import ModelSettings

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between checks whether another model needs the room, during a fetch
CHECK_SECONDS = 60.0  # between checks whether all files are still here, and at least between two attempts
AGAIN_SECONDS = 3600.0  # until the next attempt after they were dropped, or could not be fetched
DROPPED = "dropped, because another model needed the room"


class Canonical:
    """Keeps the canonical files of one model. `turn`: lets one model of a service fetch at a time."""

    def __init__(
        self, settings: ModelSettings, model_cache: ModelCache, turn: asyncio.Semaphore, changed: Callable[[], None]
    ) -> None:
        self.status: CanonicalStatus | None = None  # None: they serve themselves, are local, or are not kept
        self._wanted = settings.keep_canonical
        self._model_cache = model_cache
        self._turn = turn
        self._changed = changed
        self._id = ""
        self._manifests: Sequence[Manifest] = ()
        self._task: asyncio.Task[None] | None = None
        self._running = False

    def keep(self, desired: DesiredModel, plan: ModelPlan) -> None:
        """Fetches the files in the background, and lost ones again, if an execution cache serves. Call it stopped."""
        self._id, self._manifests = desired.id, canonical_files(desired)
        if plan.artifact and self._wanted and self._manifests:
            self._running = True
            self._come("pending")
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Begins to stop; the files stay."""
        self.status, self._running = None, False
        if self._task:
            self._task.cancel()

    async def stopped(self) -> None:
        """Waits until it has stopped."""
        if self._task:
            await ended(self._task)

    async def _run(self) -> None:
        while True:
            try:
                wait = await self._attempt()
            except FetchProblem as problem:
                wait = AGAIN_SECONDS if problem.permanent else max(problem.retry_after or 0.0, CHECK_SECONDS)
                self._come("failed" if problem.permanent else "pending", problem.message)
            except OSError as error:
                wait = CHECK_SECONDS
                self._come("pending", f"{self._model_cache.folder} cannot be written: {error.strerror or error}")
            except Exception:
                log.exception("unexpected error", extra={"model": self._id})
                wait = AGAIN_SECONDS
                self._come("failed", "internal error; the service's log has it")
            await asyncio.sleep(wait)

    async def _attempt(self) -> float:
        """Fetches missing files. Returns the seconds until the next attempt. Raises FetchProblem, OSError."""
        for manifest in self._manifests:
            folder = self._model_cache.model_folder(self._id, manifest)
            if await asyncio.to_thread(self._model_cache.find_problems, manifest, folder):
                were_here = self.status is not None and self.status.state == "ready"
                dropped = were_here and not self._model_cache.is_spare(self._id, manifest)
                if dropped or not await self._fetch(manifest):
                    self._come("pending", DROPPED)
                    return AGAIN_SECONDS
            await asyncio.to_thread(self._model_cache.mark_spare, self._id, manifest, existing=True)
        self._come("ready", done=sum(manifest.size for manifest in self._manifests))
        return CHECK_SECONDS

    async def _fetch(self, manifest: Manifest) -> bool:
        """Fetches a manifest's files; False if another model needed their room meanwhile, so that they are dropped."""
        before = sum(each.size for each in self._manifests[: self._manifests.index(manifest)])

        def report(made: FetchProgress) -> None:
            self._come("pending" if made.waits else made.stage, done=before + made.done)

        async with self._turn:
            marked = await asyncio.to_thread(self._model_cache.mark_spare, self._id, manifest)
            work = asyncio.create_task(fetch(self._model_cache, self._id, manifest, report, spare=True))
            try:
                while not (await asyncio.wait([work], timeout=LOOK_SECONDS))[0]:
                    if marked and not self._model_cache.is_spare(self._id, manifest):
                        break
                else:
                    work.result()
                    if not marked or self._model_cache.is_spare(self._id, manifest):
                        return True
            finally:
                work.cancel()
                await ended(work)
        await asyncio.to_thread(self._model_cache.discard, self._id, manifest)
        return False

    def _come(self, state: State, reason: str = "", done: int = 0) -> None:
        if not self._running:
            return
        total = sum(manifest.size for manifest in self._manifests)
        self.status = CanonicalStatus(state=state, reason=reason, done_bytes=done, total_bytes=total)
        self._changed()


def canonical_files(desired: DesiredModel) -> list[Manifest]:
    """Returns the manifests of a model's own files, unless they are local."""
    own = [*(part.manifest for part in desired.parts), desired.manifest]
    return [manifest for manifest in own if manifest.repository]
