"""The models that `allm serve` registers itself, through the public API: ALLM_MODELS, or the demo models.

The demo model's safetensors are made while the other models already serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc

from services.auth.identity_keys import OPERATOR
from services.cli.problem import Problem
from services.cli.serve.process import ending_with_us
from services.errors import AllmError
from services.models.demo.copied_demo import ENCODER, RERANKER, SHAPES, WHISPER, CopiedDemo
from services.models.demo.text_demo import (
    DEMO_ALIAS,
    DEMO_ID,
    SAFETENSORS_DEMO_ID,
    DemoError,
    install_demo,
    safetensors_demo,
    unpacking,
    unpacking_failed,
)
from services.models.formats.inspect import guess
from services.models.formats.whisper import CHECKPOINT
from services.models.hub.source import LocalTree
from services.rpc.channel import OwnIdentity
from services.settings.settings import Settings

NICE = 10  # a request may be waiting for another model's first answer
SETTLE_SECONDS = 30.0
POLL_SECONDS = 0.05
CALL_SECONDS = 150.0
_OF_FILES = {CHECKPOINT: "whisper", ".safetensors": "diffusers"}  # any other file is GGUF
# Local files settle soon; downloads may take hours, and the start does not wait for them.
ON_ITS_WAY = (model_pb2.MODEL_STATE_PENDING, model_pb2.MODEL_STATE_VERIFYING)


async def unpack_demo(models_dir: Path, say: Callable[[str], None]) -> Path | None:
    """Returns the model's folder, making it if necessary; None if an extra that it needs is not installed.

    If the task is cancelled or this process ends, the work stops and leaves no folder that looks complete.

    Raises:
        DemoError: it cannot be made.
    """
    command = unpacking(models_dir)
    if command is None:
        return None
    folder = safetensors_demo(models_dir)
    if folder.exists():
        return folder
    say(f"preparing {SAFETENSORS_DEMO_ID} in the background: unpacking to safetensors (270 MB, once)")
    process = await asyncio.create_subprocess_exec(
        *ending_with_us(command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # we handle a terminal's Ctrl-C
    )
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
    try:
        _, output = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise unpacking_failed(output.decode(errors="replace"))
    return folder


class DefaultModels:
    """Registers models with the catalog behind `address`. It reports each failure and continues."""

    def __init__(self, address: str, settings: Settings, say: Callable[[str], None]) -> None:
        self._address = address
        self._settings = settings
        self._own = OwnIdentity.of(settings.auth, OPERATOR, "supervisor", settings.tls.service)
        self._say = say
        self._copied = _copied_demos(settings)
        self._named = bool(settings.models or settings.model.models_file)  # whether the settings name the models
        self._first = False  # whether this run installed the demo

    async def register(self) -> list[model_pb2.Model]:
        """Registers the models of the settings; returns all models once their states have settled.

        Raises:
            Problem: the catalog does not answer, or the demo model cannot be made.
        """
        async with self._connected() as catalog:
            for model_id, path in self._settings.models:
                await self._offer(catalog, model_id, path)
            if not self._named and not await _listed(catalog):
                await self._demo(catalog)
            for alias, model_id in self._settings.aliases:
                await self._alias(catalog, alias, model_id)
            return await _settled(catalog)

    async def register_late(self) -> None:
        """Registers the demo model also as safetensors, which it first makes in the background.

        Once made, the model is not registered again: an operator may have removed it.

        Raises:
            Problem: the catalog does not answer, or the model cannot be made.
        """
        folder = self._settings.model.folder
        if self._named or not (self._first or not safetensors_demo(folder).exists()):
            return
        async with self._connected() as catalog:
            ids = {model.id for model in await _listed(catalog)}
            if DEMO_ID not in ids or SAFETENSORS_DEMO_ID in ids:
                return
            try:
                path = await unpack_demo(folder, self._say)
            except DemoError as error:
                raise Problem(str(error)) from error
            if path:
                await self._offer(catalog, SAFETENSORS_DEMO_ID, path)
                for made in await _settled(catalog):
                    if made.id == SAFETENSORS_DEMO_ID:
                        state = model_pb2.ModelState.Name(made.state).removeprefix("MODEL_STATE_").lower()
                        self._say(f"{made.id} - {made.reason or state} (the same model as safetensors, on torch)")

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[model_service_pb2_grpc.ModelServiceAsyncStub]:
        options = (("grpc.max_receive_message_length", -1),)
        async with self._own.channel(self._address, options) as channel:
            try:
                yield model_service_pb2_grpc.ModelServiceStub(channel)
            except grpc.aio.AioRpcError as error:
                raise Problem(f"the catalog does not answer: {error.details()}") from error

    async def _demo(self, catalog: model_service_pb2_grpc.ModelServiceAsyncStub) -> None:
        folder = self._settings.model.folder
        try:
            path = await asyncio.to_thread(install_demo, folder, self._say)
            copies = [(demo, await asyncio.to_thread(demo.install, folder, self._say)) for demo in self._copied]
        except DemoError as error:
            raise Problem(str(error)) from error
        # An alias of the operator's own goes before a demo's.
        taken = {name for model in await _listed(catalog) for name in (model.id, *model.aliases)}
        taken |= {alias for alias, _ in self._settings.aliases}
        if path:
            self._first = True
            await self._offer(catalog, DEMO_ID, path, [DEMO_ALIAS] if DEMO_ALIAS not in taken else [])
        for demo, copy in copies:
            if copy:
                defaults = model_pb2.ImageDefaults(steps=demo.steps, guidance=demo.guidance) if demo.steps else None
                await self._offer(
                    catalog, demo.id, copy, [demo.alias] if demo.alias and demo.alias not in taken else [], defaults
                )

    async def _offer(
        self,
        catalog: model_service_pb2_grpc.ModelServiceAsyncStub,
        model_id: str,
        path: Path,
        aliases: Sequence[str] = (),
        image_defaults: model_pb2.ImageDefaults | None = None,
    ) -> None:
        """Registers a model's file or folder, or updates the existing registration of that id."""
        source, format = _url(path), await asyncio.to_thread(_format, path)
        new = model_service_pb2.RegisterModelRequest(
            id=model_id, source=source, format=format, aliases=aliases, image_defaults=image_defaults
        )
        try:
            await catalog.RegisterModel(new, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise
            taken = error.code() == grpc.StatusCode.ALREADY_EXISTS
            if not (taken and await self._refresh(catalog, model_id, source)):
                self._say(f"{model_id} was not registered: {error.details()}")

    async def _refresh(self, catalog: model_service_pb2_grpc.ModelServiceAsyncStub, model_id: str, source: str) -> bool:
        """Updates a registered model from `source`; returns False if the id is only an alias."""
        reply = await catalog.GetModel(model_service_pb2.GetModelRequest(id=model_id), timeout=CALL_SECONDS)
        if reply.model.id != model_id:  # the other model must not change
            return False
        change = model_service_pb2.UpdateModelRequest(id=model_id, source=source)
        try:
            await catalog.UpdateModel(change, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise
            self._say(f"{model_id} keeps its registration: {error.details()}")
        else:
            if source != reply.model.source:
                self._say(f"{model_id}: its source is now {source}, it was {reply.model.source}")
        return True

    async def _alias(self, catalog: model_service_pb2_grpc.ModelServiceAsyncStub, alias: str, model_id: str) -> None:
        try:
            reply = await catalog.GetModel(model_service_pb2.GetModelRequest(id=model_id), timeout=CALL_SECONDS)
            if alias in reply.model.aliases:
                return
            names = model_service_pb2.AliasList(names=[*reply.model.aliases, alias])
            change = model_service_pb2.UpdateModelRequest(id=model_id, aliases=names)
            await catalog.UpdateModel(change, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise
            self._say(f"ALLM_ALIASES: {alias} is not an alias of {model_id}: {error.details()}")


def _copied_demos(settings: Settings) -> list[CopiedDemo]:
    audio, image = settings.audio_replicas > 0, settings.image_replicas > 0
    return [ENCODER, RERANKER, *([WHISPER] if audio else []), *([SHAPES] if image else [])]


def _url(path: Path) -> str:
    return path.expanduser().absolute().as_uri()


def _format(path: Path) -> str:
    """Guesses a path's format: a folder's by its content, a file's by its suffix."""
    path = path.expanduser()
    if not path.is_dir():
        return _OF_FILES.get(path.suffix, "gguf")
    try:
        formats = {format for format, _ in guess(LocalTree(path, [path]))}
    except AllmError:  # the catalog reports the error
        formats = set()
    return formats.pop() if formats in ({"whisper"}, {"diffusers"}) else "safetensors"


async def _listed(catalog: model_service_pb2_grpc.ModelServiceAsyncStub) -> list[model_pb2.Model]:
    reply = await catalog.ListModels(model_service_pb2.ListModelsRequest(), timeout=CALL_SECONDS)
    return list(reply.models)


def _is_changing(model: model_pb2.Model) -> bool:
    """Reports whether its state is about to change, also while a replica reports only an older generation."""
    return model.state in ON_ITS_WAY or any(
        replica.generation < model.generation
        and (replica.next.generation < model.generation or replica.next.state in ON_ITS_WAY)
        for replica in model.replicas
    )


async def _settled(catalog: model_service_pb2_grpc.ModelServiceAsyncStub) -> list[model_pb2.Model]:
    """Returns all models once none is about to change state, or after a timeout."""
    deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while True:
        models = await _listed(catalog)
        settled = not any(map(_is_changing, models))
        if settled or asyncio.get_running_loop().time() > deadline:
            return models
        await asyncio.sleep(POLL_SECONDS)
