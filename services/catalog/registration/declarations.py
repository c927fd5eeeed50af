"""Follows the models file: registers and updates the models it declares, and removes those it no longer has.

The file is read again every few seconds, because a ConfigMap is swapped by a link, which file watches do not report
everywhere. A change counts once it was read twice, because the file may be half written. Each entry is applied
separately, and retried with growing pauses while that fails, since the hub may be down.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from services.catalog import metrics
from services.catalog.registration.marked_yaml import Wrong
from services.catalog.registration.models_file import Declaration, ModelsFile, Problem, read_file, read_models
from services.catalog.registration.register import Declared, Registrar
from services.catalog.registration.registrations import Registration, Registrations
from services.errors import AllmError, Internal, InvalidRequest, ModelNotFound

log = logging.getLogger(__name__)
A = TypeVar("A")
R = TypeVar("R")

LOOK_SECONDS = 2.0
FIRST_PAUSE = 2.0  # seconds until an entry that failed is tried again; doubled each time
LONGEST_PAUSE = 300.0
AT_ONCE = 3  # entries surveyed at a time; one of the surveyor's threads is left to operators


class Declarations:
    """Applies the models file at `path`; None: there is no such file. It needs a running loop; close it."""

    def __init__(self, path: Path | None, registrations: Registrations, registrar: Registrar) -> None:
        self.path = path
        self._registrations = registrations
        self._registrar = registrar
        self._seen: bytes | Problem | None = None  # the content last read, or the reason it could not be
        self._taken: bytes | Problem | None = None  # the content last parsed, successfully or not
        self._file: ModelsFile | None = None  # the last file that could be parsed
        self._file_problem: Problem | None = None  # the problem of the file as a whole
        self._failures: dict[str, AllmError] = {}  # by id: the error that applying an entry ended with
        self._tasks: dict[str, tuple[Declaration, asyncio.Task[None]]] = {}
        self._looked: set[str] = set()  # ids whose local files this process has surveyed
        self._places = asyncio.Semaphore(AT_ONCE)
        self._attempted = asyncio.Event()
        self._following = asyncio.create_task(self._follow())

    def problems(self) -> list[Problem]:
        """Returns the parts of the file that are not applied, each with the reason."""
        found = [self._file_problem] if self._file_problem else []
        if self._file:
            found += self._file.problems
            for declaration in self._file.declarations:
                if error := self._failures.get(declaration.id):
                    found.append(declaration.problem(error.param, error.message))
        return found

    def check_by_hand(self, registration: Registration) -> None:
        """Checks that an operator may change or remove a model by hand. Raises InvalidRequest."""
        if registration.declared and self.path:
            what = f"the model {registration.id!r} is declared in ALLM_MODELS_FILE: change {self.path} instead"
            raise InvalidRequest(what, param="id")

    async def wait_until_attempted(self, seconds: float) -> None:
        """Waits until every entry of the file was attempted once, for `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._attempted.wait(), seconds)

    async def close(self) -> None:
        """Stops following the file."""
        tasks = [self._following, *(task for _, task in self._tasks.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        if self.path is None:
            await self._release_all()
            self._attempted.set()
            return
        while True:
            try:
                await self._reload(self.path)
                await self._reconcile()
            except Exception:  # a full disk, or a bug in one round, must not end the loop
                log.exception("unexpected error while the models file was applied")
            metrics.MODELS_FILE_PROBLEMS.set(len(self.problems()))
            await asyncio.sleep(LOOK_SECONDS)

    async def _release_all(self) -> None:
        """Releases the declared models to operators, because there is no models file."""
        for registration in self._registrations:
            if registration.declared:
                with contextlib.suppress(AllmError):
                    await self._registrations.change(registration, lambda old: replace(old, declared=""))

    async def _reload(self, path: Path) -> None:
        """Reads the file and parses it if it has changed. A file that cannot be parsed changes nothing."""
        found = await asyncio.to_thread(_attempt, read_file, path)
        settled = self._taken is None or found == self._seen
        self._seen = found
        if not settled or found == self._taken:
            return
        self._taken = found
        parsed = found if isinstance(found, Problem) else await asyncio.to_thread(_attempt, read_models, found)
        if isinstance(parsed, Problem):
            self._file_problem = parsed
            _log(parsed, path)
            return
        self._file, self._file_problem = parsed, None
        for problem in parsed.problems:
            _log(problem, path)
        facts = {"path": str(path), "models": len(parsed.declarations), "problems": len(parsed.problems)}
        log.info("models file read", extra=facts)

    async def _reconcile(self) -> None:
        """Starts all changes that the file asks for, and removes the models it no longer has."""
        file = self._file
        if file is None:
            self._attempted.set()
            return
        declared = {declaration.id: declaration for declaration in file.declarations}
        for model_id in [model_id for model_id in self._tasks if model_id not in declared]:
            await self._stop(model_id)
        for model_id in [model_id for model_id in self._failures if model_id not in declared]:
            del self._failures[model_id]
        if file.complete:
            await self._remove(
                registration for registration in self._registrations if registration.id not in file.named
            )
        for declaration in file.declarations:
            under_way = self._tasks.get(declaration.id)
            if under_way and under_way[0] != declaration:
                await self._stop(declaration.id)
            if self._needs_apply(declaration) and declaration.id not in self._tasks:
                await self._free_names(declaration, declared)
                self._tasks[declaration.id] = (declaration, asyncio.create_task(self._apply(declaration)))
        self._note_attempted()

    def _needs_apply(self, declaration: Declaration) -> bool:
        """Reports whether an entry differs from its registration, or its files may have changed meanwhile."""
        found = self._registrations.find(declaration.id)
        if found is None or found.declared != declaration.text:
            return True
        return declaration.local and declaration.id not in self._looked

    async def _apply(self, declaration: Declaration) -> None:
        """Applies an entry, retrying until it succeeds."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with self._places:
                    await self._declare(declaration)
            except Exception as error:
                self._fail(declaration, error)
            else:
                self._failures.pop(declaration.id, None)
                self._looked.add(declaration.id)
                del self._tasks[declaration.id]
                self._note_attempted()
                return
            self._note_attempted()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _declare(self, declaration: Declaration) -> None:
        found = self._registrations.find(declaration.id)
        before = json.loads(found.declared) if found and found.declared else {}
        # A field that the entry no longer sets returns to its default; one it never set stays an operator's.
        runtime = declaration.new.runtime or ("" if before.get("runtime") else None)
        keep_loaded = declaration.keep_loaded
        if keep_loaded is None and before.get("keep_loaded") is not None:
            keep_loaded = False
        same = found is not None and found.declared == declaration.text
        declared = Declared(
            text=declaration.text,
            runtime=None if same else runtime,
            keep_loaded=None if same else keep_loaded,
        )
        look = declaration.local and declaration.id not in self._looked
        await self._registrar.declare(declaration.new, declared, look=look)

    def _fail(self, declaration: Declaration, error: Exception) -> None:
        before = self._failures.get(declaration.id)
        if not isinstance(error, AllmError):
            log.exception("unexpected error while a model was declared", extra={"model": declaration.id})
            error = Internal("it could not be registered: the catalog's log has the reason")
        self._failures[declaration.id] = error
        if (before is None or before.message != error.message) and self.path:  # logged once, not at each retry
            _log(declaration.problem(error.param, error.message), self.path)

    def _note_attempted(self) -> None:
        if all(model_id in self._failures for model_id in self._tasks):
            self._attempted.set()

    async def _stop(self, model_id: str) -> None:
        _, task = self._tasks.pop(model_id)
        self._failures.pop(model_id, None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _remove(self, registrations: Iterable[Registration]) -> None:
        for registration in [one for one in registrations if one.declared]:
            with contextlib.suppress(ModelNotFound):
                await self._registrations.remove(registration)
            self._looked.discard(registration.id)
            log.info("model removed: the models file no longer has it", extra={"model": registration.id})

    async def _free_names(self, declaration: Declaration, declared: dict[str, Declaration]) -> None:
        """Takes names from declared models that no longer declare them, so that aliases can move or be swapped."""
        for name in (declaration.id, *declaration.new.aliases):
            try:
                holder = self._registrations.get(name)
            except ModelNotFound:
                continue
            other = declared.get(holder.id)
            if holder.id == declaration.id or not holder.declared or other is None or name in other.new.aliases:
                continue
            with contextlib.suppress(AllmError):  # applying the entry reports the error
                await self._registrations.change(holder, partial(_without, name))


def _attempt(read: Callable[[A], R], argument: A) -> R | Problem:
    """Returns what `read` returns, or the problem of the file as a whole that it raises."""
    try:
        return read(argument)
    except Wrong as wrong:
        return Problem(line=wrong.line, key=wrong.key, model="", message=wrong.message)


def _without(name: str, registration: Registration) -> Registration:
    aliases = tuple(alias for alias in registration.desired.aliases if alias != name)
    return replace(registration, desired=replace(registration.desired, aliases=aliases))


def _log(problem: Problem, path: Path) -> None:
    facts = {"path": str(path), "line": problem.line, "key": problem.key, "model": problem.model}
    log.error("models file: %s", problem.message, extra=facts)
