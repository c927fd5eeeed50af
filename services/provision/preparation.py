"""The preparation of one model on this replica: from its registration to verified files and a runtime that serves them.

A new generation is prepared while the old one serves, and takes over when it is ready: if the old one was in memory,
only once the new one is loaded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from services.errors import AllmError, ModelInvalid, ModelNotReady, Unsupported
from services.models.descriptor import ModelDescriptor
from services.models.desired import DesiredModel
from services.models.manifest import Manifest
from services.models.runtime_choice import EngineRegistry
from services.models.status import NextStatus, State, Status
from services.models.store import ModelStore, ServedGeneration, StoredModel
from services.provision.canonical import Canonical, canonical_files
from services.provision.fetch import FetchProblem, FetchProgress, fetch
from services.provision.model_cache import ModelCache
from services.provision.plan import ModelPlan, make_plans
from services.provision.swap import load_in_parallel
from services.residency.manager import ModelManager
from services.residency.memory.reservation import ResidentKey, resident_key
from services.residency.slot import Resident
from services.rpc.deadline import ended
from services.settings.settings import ModelSettings

log = logging.getLogger(__name__)

FIRST_PAUSE = 2.0  # seconds before a failed fetch is retried; doubled each time
LONGEST_PAUSE = 60.0
LOOK_AGAIN = 15.0  # seconds between checks of a disk or of local files after a problem
LOAD_AGAIN = 15.0  # seconds between attempts to load a model that belongs in memory
MAX_REASONS = 5
PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The dependencies that all preparations of a service share."""

    settings: ModelSettings
    registry: EngineRegistry
    manager: ModelManager[Any]
    store: ModelStore
    model_cache: ModelCache
    changed: Callable[[], None]  # called whenever a status may have changed
    preload: frozenset[str] = frozenset()  # ids and aliases of models that are loaded once when they are ready
    canonical_turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


@dataclass(slots=True, kw_only=True)
class _Upcoming:
    """A generation that does not serve yet."""

    generation: int
    state: State = "pending"
    problem: AllmError | None = None
    done: int = 0
    total: int = 0

    @property
    def reason(self) -> str:
        return self.problem.message if self.problem else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Current:
    """The generation that serves now."""

    serving: ServedGeneration
    plan: ModelPlan
    hold: ExitStack

    @property
    def key(self) -> ResidentKey:
        return resident_key(self.serving.descriptor, self.serving.runtime)


class ModelPreparation:
    """The preparation of a model, which then keeps it serving. `after`: a task that must end before it begins."""

    def __init__(self, desired: DesiredModel, means: Means, after: asyncio.Task[None] | None = None) -> None:
        self.desired = desired
        self._means = means
        self._current: _Current | None = None
        self._upcoming: _Upcoming | None = None
        self._task = after
        self._background: set[asyncio.Task[None]] = set()
        self._loading: asyncio.Task[None] | None = None
        self._canonical = Canonical(means.settings, means.model_cache, means.canonical_turn, means.changed)
        self._load_again = 0.0
        self._gone = False
        self.preload = bool(means.preload & {desired.id, *desired.aliases})  # until the first load
        means.manager.pin(desired.id, wanted=desired.keep_loaded)
        self._examined: AllmError | None = None  # the last load failure after which the files were checked
        self._prepare()

    def update(self, desired: DesiredModel) -> None:
        """Applies a changed registration."""
        old, self.desired = self.desired, desired
        unload, load = desired.unloads > old.unloads, desired.keep_loaded and not old.keep_loaded
        self._means.manager.pin(desired.id, wanted=desired.keep_loaded)
        if unload:
            self.preload = False
            self._in_background(self._means.manager.retire(desired.id))
        if load:
            self._load_again = 0.0  # now, not when the next attempt would be due
            self._means.manager.forgive(desired.id)
        anew = (desired.generation, desired.manifest, desired.parts) != (old.generation, old.manifest, old.parts)
        # An operator who loads or unloads a failed model asks for another attempt.
        anew |= (unload or load) and self._upcoming is not None and self._task is not None and self._task.done()
        if anew or (desired.runtime, desired.artifacts) != (old.runtime, old.artifacts):
            self._prepare()
        else:
            self._notify()

    def status(self) -> Status:
        """Returns the model's status."""
        upcoming, current = self._upcoming, self._current
        done, total = (upcoming.done, upcoming.total) if upcoming else (0, 0)
        if current is None:
            now = upcoming or _Upcoming(generation=self.desired.generation)
            return Status(
                state=now.state, generation=now.generation, reason=now.reason, done_bytes=done, total_bytes=total
            )
        resident: Resident | None = self._means.manager.resident(current.key)
        problem = self._means.manager.problem(current.key)
        reason = problem or self._means.manager.refusal(current.key)
        following = None
        if upcoming:
            following = NextStatus(generation=upcoming.generation, state=upcoming.state, reason=upcoming.reason)
        return Status(
            state="loaded" if resident else "failed" if problem else "ready",
            generation=current.serving.descriptor.generation,
            reason=reason.message if reason and not resident else "",
            runtime=current.serving.runtime.name,
            device=current.serving.runtime.device,
            artifact=current.plan.artifact,
            done_bytes=done,
            total_bytes=total,
            peak_memory=resident.peak_memory if resident else 0,
            next=following,
            memory=self._means.manager.memory(current.key),
            canonical=self._canonical.status,
        )

    def keep(self) -> None:
        """Loads the model if it belongs in memory. Called periodically; failures show in its status."""
        current, now = self._current, time.monotonic()
        if self._gone or current is None:
            return
        problem = self._means.manager.problem(current.key)
        if problem and problem is not self._examined:
            self._examined = problem
            self._in_background(self._examine(current))
        resident = self._means.manager.resident(current.key)
        self.preload &= resident is None
        if not (self.desired.keep_loaded or self.preload) or now < self._load_again:
            return
        if (self._loading is None or self._loading.done()) and not resident:
            self._load_again = now + LOAD_AGAIN
            self._loading = asyncio.create_task(self._guarded(self._load(current.serving)))

    def leave(self) -> None:
        """Removes the model from the store, so that new requests do not find it. Call `close` afterwards."""
        self._gone = True
        self._means.manager.pin(self.desired.id, wanted=False)
        self._means.store.remove(self.desired.id)

    async def close(self, *, forget: bool) -> None:
        """Stops all tasks. `forget`: the registration is gone; also unloads the model and deletes its files."""
        for task in (self._task, self._loading):
            if task:
                task.cancel()
                await ended(task)
        self._canonical.stop()
        await self._canonical.stopped()
        if forget:
            await self._means.manager.retire(self.desired.id)
        else:
            for task in self._background:
                task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)  # waits for requests on earlier generations
        if self._current:
            self._current.hold.close()
        if forget:
            await asyncio.to_thread(self._means.model_cache.sweep, self.desired.id, ())

    # --- preparation of a generation

    def _prepare(self) -> None:
        before = self._task
        if before and self._upcoming:
            before.cancel()
        self._canonical.stop()
        self._upcoming = _Upcoming(generation=self.desired.generation)
        self._notify()
        self._task = asyncio.create_task(self._guarded(self._run(self.desired, self._upcoming, before), self._upcoming))

    async def _run(self, desired: DesiredModel, upcoming: _Upcoming, before: asyncio.Task[None] | None) -> None:
        if before:
            await ended(before)
        await self._canonical.stopped()
        try:
            plans = make_plans(desired, self._means.registry, self._means.settings)
        except Unsupported as problem:
            self._report(upcoming, "unsupported", problem)
            return
        reasons = []
        for plan in plans:
            try:
                await self._follow(plan, desired, upcoming)
            except AllmError as problem:
                log.warning("a model cannot be prepared", extra={"model": desired.id, "reason": problem.message})
                reasons.append(f"{plan.artifact}: {problem.message}" if plan.artifact else problem.message)
            else:
                return
        self._report(upcoming, "failed", ModelInvalid("; ".join(reasons)))

    async def _follow(self, plan: ModelPlan, desired: DesiredModel, upcoming: _Upcoming) -> None:
        if self._serves(plan, desired.generation):
            self._upcoming = None
            self._canonical.keep(self.desired, plan)
            self._notify()
            return
        # First, because another replica that no longer needs the files could otherwise remove them in between.
        hold = await self._hold(desired.id, plan.manifests, upcoming)
        try:
            folders = [await self._fetch_or_check(desired, manifest, upcoming) for manifest in plan.manifests]
            await self._take_over(plan, plan.descriptor(desired.generation, folders), hold)
        except BaseException:
            hold.close()
            raise

    async def _hold(self, model_id: str, manifests: Sequence[Manifest], upcoming: _Upcoming) -> ExitStack:
        """Holds files; retries while the disk fails."""
        while True:
            try:
                return await self._try_to_hold(model_id, manifests)
            except OSError as error:
                where = f"{self._means.settings.folder} (ALLM_MODELS_DIR)"
                self._report(upcoming, "failed", ModelInvalid(f"{where} cannot be written: {error.strerror or error}"))
            await asyncio.sleep(LOOK_AGAIN)

    async def _try_to_hold(self, model_id: str, manifests: Sequence[Manifest]) -> ExitStack:
        """Holds files; a cancelled call leaves nothing held."""
        taking = asyncio.create_task(asyncio.to_thread(self._means.model_cache.hold, model_id, *manifests))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            with suppress(asyncio.CancelledError):
                await ended(taking)
            if not taking.exception():
                taking.result().close()
            raise

    def _serves(self, plan: ModelPlan, generation: int) -> bool:
        """Returns whether the plan already serves."""
        if (current := self._current) is None:
            return False
        serves = (current.plan.manifest.digest, current.plan.runtime, current.serving.descriptor.generation)
        return serves == (plan.manifest.digest, plan.runtime, generation)

    async def _fetch_or_check(self, desired: DesiredModel, manifest: Manifest, upcoming: _Upcoming) -> Path:
        """Returns the folder with all files, verified; retries failures that may pass."""
        if manifest.folder:
            return await self._check_local_files(desired, manifest, upcoming)
        model_cache, pause = self._means.model_cache, FIRST_PAUSE
        while True:
            try:
                return await fetch(model_cache, desired.id, manifest, partial(self._progress, upcoming))
            except FetchProblem as problem:
                if problem.permanent:
                    raise ModelInvalid(problem.message) from problem
                wait = problem.retry_after or pause
                log.warning("fetching continues later", extra={"model": desired.id, "reason": problem.message})
                waiting = ModelNotReady(f"{problem.message}; trying again in {wait:.0f} s", retry_after=wait)
                self._report(upcoming, "downloading", waiting)
            await asyncio.sleep(wait)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _check_local_files(self, desired: DesiredModel, manifest: Manifest, upcoming: _Upcoming) -> Path:
        """Returns the folder of local files. The model is failed while they differ from the registration."""
        folder = self._means.model_cache.model_folder(desired.id, manifest)
        while wrong := await asyncio.to_thread(self._means.model_cache.find_problems, manifest, folder):
            self._report(upcoming, "failed", ModelInvalid("; ".join(wrong[:MAX_REASONS])))
            await asyncio.sleep(LOOK_AGAIN)
        return folder

    async def _take_over(self, plan: ModelPlan, descriptor: ModelDescriptor, hold: ExitStack) -> None:
        means, old = self._means, self._current
        serving = ServedGeneration(descriptor=descriptor, runtime=plan.runtime)
        new = _Current(serving=serving, plan=plan, hold=hold)
        if old and means.manager.resident(old.key):
            await self._load_in_parallel(old, new)
        self._current, self._upcoming, self._load_again = new, None, 0.0
        self._canonical.keep(self.desired, plan)
        self._notify()
        self.keep()
        log.info("model is ready", extra={"model": descriptor.id, "generation": descriptor.generation})
        self._in_background(self._tidy(old, new))

    async def _load_in_parallel(self, old: _Current, new: _Current) -> None:
        """Loads the new generation before the old one goes, if memory suffices. On failure the old one serves on."""

        def step_down(why: str) -> None:
            self._current = None
            if self._upcoming:
                self._report(self._upcoming, "pending", ModelNotReady(why))

        try:
            await load_in_parallel(self._means.manager, new.serving, step_down)
        except BaseException:
            self._current = old
            self._notify()
            raise

    async def _tidy(self, old: _Current | None, new: _Current) -> None:
        """Retires the generation that served before, once idle, and deletes all files that are no longer wanted."""
        if old:
            await self._means.manager.retire(self.desired.id, keep=new.key)
            old.hold.close()
        wanted = [artifact.manifest for artifact in self.desired.artifacts]
        if self._means.settings.keep_canonical or not (self._current and self._current.plan.artifact):
            wanted += canonical_files(self.desired)
        if self._current:
            wanted += self._current.plan.manifests
        await asyncio.to_thread(self._means.model_cache.sweep, self.desired.id, wanted)

    async def _examine(self, current: _Current) -> None:
        """Checks the files after a failed load: prepares the model again if any are missing or changed."""
        model_cache, wrong = self._means.model_cache, []
        for manifest in current.plan.manifests:
            folder = model_cache.model_folder(self.desired.id, manifest)
            wrong += await asyncio.to_thread(model_cache.find_problems, manifest, folder)
        if wrong and current is self._current and not self._gone:
            log.warning("files were lost", extra={"model": self.desired.id, "problem": "; ".join(wrong[:MAX_REASONS])})
            self._current = None
            self._prepare()
            await self._means.manager.retire(self.desired.id)
            current.hold.close()

    async def _load(self, serving: ServedGeneration) -> None:
        with suppress(AllmError):  # the manager keeps it, and the status shows it
            await self._means.manager.load(serving.descriptor, serving.runtime)
            self.preload = False

    # --- status

    def _progress(self, upcoming: _Upcoming, progress: FetchProgress) -> None:
        upcoming.done, upcoming.total = progress.done, progress.total
        share = progress.done * PERCENT // progress.total if progress.total else PERCENT
        how = f"{self.desired.id} is {progress.stage}: {share} % done"
        if progress.waits:
            how += "; this replica waits for its turn, or for another replica that fetches the same files"
        self._report(upcoming, progress.stage, ModelNotReady(how))

    def _report(self, upcoming: _Upcoming, state: State, problem: AllmError) -> None:
        if upcoming is self._upcoming:  # otherwise a later generation has replaced it
            upcoming.state, upcoming.problem = state, problem
            self._notify()

    def _notify(self) -> None:
        """Publishes the model's current state in the store, where requests find it."""
        if self._gone:
            return
        serving = self._current.serving if self._current else None
        problem = None
        if serving is None:
            waiting = ModelNotReady(f"{self.desired.id} is registered; its service has not started on it yet")
            problem = (self._upcoming.problem if self._upcoming else None) or waiting
        self._means.store.put(StoredModel(desired=self.desired, serving=serving, problem=problem))
        self._means.changed()

    # --- tasks

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a background task that may wait for running requests."""
        task = asyncio.create_task(self._guarded(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None], upcoming: _Upcoming | None = None) -> None:
        """Logs unexpected errors: they must neither go unnoticed nor harm other models."""
        try:
            await work
        except Exception:
            log.exception("unexpected error", extra={"model": self.desired.id})
            if upcoming:
                self._report(upcoming, "failed", ModelInvalid("internal error; the service's log has it"))
