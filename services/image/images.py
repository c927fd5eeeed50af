"""The core of the image service: a request in, a stream of events out. Both wire formats call it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from services.auth.caller import current_caller
from services.image.engine import messages
from services.image.image_request import FileKind, ImageRequest
from services.image.loaded import GenerationJob
from services.image.manager import ImageModels
from services.image.pictures.coding.messages import Decode, Encode
from services.image.pictures.pictures import Pictures
from services.image.recipe import Parameters, Recipe
from services.settings.settings import ImageSettings
from services.telemetry import tracing


@dataclass(frozen=True, slots=True)
class Started:
    """A loaded model has accepted the request."""

    model_id: str
    parameters: Parameters
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The request's progress; `step` never decreases."""

    step: int  # mean of the pictures
    steps: int  # per picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A picture's file."""

    index: int  # in the request, from 0
    seed: int
    kind: FileKind
    width: int
    height: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Partial:
    """A preview of a picture."""

    number: int  # of its previews, from 0
    drawn: Drawn


@dataclass(frozen=True, slots=True)
class Done:
    """A finished picture. Pictures need not arrive in order."""

    drawn: Drawn


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of the request, with its usage."""

    prompt_tokens: int
    steps: int  # computed, over all pictures
    seconds: float  # since the first step


Event = Started | Progress | Partial | Done | Finished


class Images:
    """Draws pictures."""

    def __init__(self, models: ImageModels, pictures: Pictures, settings: ImageSettings) -> None:
        self._models = models
        self._pictures = pictures
        self._metadata = settings.metadata

    async def model_id(self, name: str) -> str:
        """Resolves an id or alias to the model's id. Raises ModelNotFound."""
        return (await self._models.find(name)).id

    @asynccontextmanager
    async def generate(self, request: ImageRequest, client: str) -> AsyncIterator[AsyncIterator[Event]]:
        """Runs a request for the duration of the block; leaving the block early stops the model's work.

        The events end after Finished.

        Raises, here or while events are read:
            ModelNotFound, ModelInvalid, ModelNotReady, Unsupported: the model cannot be served, or cannot do this.
            InvalidRequest: a picture cannot be read, or a value is wrong; `param` is a field of ImageRequest.
            Overloaded: too many requests wait, or the caller's key has used up its tokens of the minute.
            Timeout, Internal, OutOfMemory: the request took too long or failed.
        """
        caller = current_caller()
        stored = await self._models.find(request.model)
        await caller.admit()
        async with self._models.loaded(stored) as model:
            recipe = Recipe(request, stored.id, model.ready, stored.desired.image_defaults)
            image, mask = None, None
            if request.task == "generate":
                parameters = recipe.plain()
            else:
                own = request.task == "edit"
                order = Decode(image=request.image, mask=request.mask, fit=recipe.fit(), own_mask=own)
                with tracing.part("decode picture"):
                    given = await self._pictures.decode(order)
                image, mask = given.pixels, given.mask
                parameters = recipe.over(given.width, given.height, masked=mask is not None)

            def message(number: int) -> messages.Generate:
                return recipe.generate(number, client, parameters, image, mask)

            with model.draw(message) as drawing:
                try:
                    yield self._events(request, stored.id, parameters, drawing)
                finally:
                    caller.spend(drawing.tokens(parameters.width * parameters.height * request.count))

    async def _events(
        self, request: ImageRequest, model_id: str, parameters: Parameters, drawing: GenerationJob
    ) -> AsyncIterator[Event]:
        tokens = 0
        while True:
            news = await drawing.next()
            if isinstance(news, messages.Accepted):
                tokens = news.prompt_tokens
                yield Started(model_id, parameters, tokens)
            elif isinstance(news, messages.Progress):
                yield Progress(news.step, news.steps)
            elif isinstance(news, messages.Picture):
                drawn = await self._drawn(request, model_id, parameters, news)
                yield Done(drawn) if news.partial is None else Partial(news.partial, drawn)
            else:
                yield Finished(tokens, news.steps, news.seconds)
                return

    async def _drawn(
        self, request: ImageRequest, model_id: str, parameters: Parameters, picture: messages.Picture
    ) -> Drawn:
        seed = parameters.seed + picture.index
        whole = picture.partial is None
        order = Encode(
            width=picture.width,
            height=picture.height,
            pixels=picture.pixels,
            kind=request.output.kind,
            quality=request.output.quality,
            texts=_texts(model_id, parameters, seed) if self._metadata and whole else {},
        )
        with tracing.part("encode"):
            data = await self._pictures.encode(order)
        return Drawn(
            index=picture.index,
            seed=seed,
            kind=request.output.kind,
            width=picture.width,
            height=picture.height,
            data=data,
        )


def _texts(model_id: str, parameters: Parameters, seed: int) -> dict[str, str]:
    """Returns a picture's metadata. The prompt is left out, because pictures are shared more freely than prompts."""
    texts = {
        "Software": "allm",
        "Model": model_id,
        "Seed": str(seed),
        "Steps": str(parameters.steps),
        "Guidance": f"{parameters.guidance:g}",
        "Scheduler": parameters.scheduler,
    }
    if parameters.strength is not None:
        texts["Strength"] = f"{parameters.strength:g}"
    return texts
