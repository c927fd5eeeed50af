"""A service's model set, manager and store, without a catalog or gRPC, and models on the loopback hub."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from services.models.desired import DesiredModel
from services.models.hub.repository import HubTree
from services.models.hub.source import HubSource
from services.models.manifest import Manifest
from services.models.runtime_choice import EngineRegistry
from services.models.status import Status
from services.models.store import ModelStore
from services.provision.follower import ModelSet
from services.provision.model_cache import ModelCache
from services.provision.preparation import Means
from services.settings.settings import load_settings
from tests.loopback_hub import LoopbackHub
from tests.provision.desired_models import Loader, Manager, registration

PATIENCE_SECONDS = 60
POLL_SECONDS = 0.02
WEIGHTS = "m.gguf"


class Service:
    """The service. `settings`: its environment."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.loader = Loader()
        self.manager = Manager(self.loader)
        self.store = ModelStore("me")
        self.model_cache = ModelCache(folder / "models")
        means = Means(
            settings=load_settings({"ALLM_HOME": str(folder), **settings}).model,
            registry=EngineRegistry("cpu", forced=False),
            manager=self.manager,
            store=self.store,
            model_cache=self.model_cache,
            changed=lambda: None,
        )
        self.model_set = ModelSet(means)

    def status(self) -> Status:
        return self.model_set.statuses()["m"]

    def lease(self) -> contextlib.AbstractAsyncContextManager[object]:
        """Leases the model as a request does."""
        serving = self.store.serveable(self.store.get("m"))
        return self.manager.lease(serving.descriptor, serving.runtime)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self.model_set.keep()
                await asyncio.sleep(POLL_SECONDS)

    async def until_serving(self, generation: int) -> None:
        def is_so() -> bool:
            status = self.status()
            return status.serving and status.generation == generation and status.next is None

        await self.until(is_so)

    def files(self) -> list[Path]:
        """Returns all files in the model cache except locks and marks."""
        found = [path for path in self.model_cache.folder.rglob("*") if path.is_file()]
        return [path for path in found if path.parent.name not in (".locks", ".spare")]


def on_hub(
    hub: LoopbackHub, folder: Path, content: bytes, repository: str = "org/model", name: str = WEIGHTS
) -> Manifest:
    """Adds a new commit of a repository with one file and returns its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    commit = hub.add(repository, folder)
    tree = HubTree.open_repository(HubSource(repository, commit, ""))
    return Manifest(files=(tree.files[name],), primary=name, repository=repository, revision=commit)


def wanted(manifest: Manifest, generation: int = 1, **more: object) -> DesiredModel:
    return registration(manifest, generation=generation, **more)  # type: ignore[arg-type]


async def settle() -> None:
    """Runs every task until it waits."""
    for _ in range(50):
        await asyncio.sleep(0)
