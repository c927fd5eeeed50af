"""The core of the image service: a request in, a stream of events out. Both wire formats call it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from services.auth.caller import current_caller
from services.errors import Internal
from services.image.engine.messages import Accepted, Draft, Finished, Generate, Parameters, Picture, Progress
from services.image.manager import GenerationJob, ImageModels
from services.image.parameters import ImageRequest, OutputFormat, ResolvedRequest
from services.models.store import StoredModel
from services.pictures.messages import Decode, Encode, FileKind
from services.pictures.pictures import Pictures
from services.settings.modality_settings import ImageSettings
from services.telemetry import tracing


@dataclass(frozen=True, slots=True)
class Started:
    """A loaded model has accepted the request."""

    model_id: str
    parameters: Parameters
    seed: int  # of the first picture
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFile:
    """A picture, or a preview of one, as a file. Pictures need not arrive in order."""

    index: int  # in the request, from 0
    partial: int | None = None  # number of the preview, from 0; None: the picture itself
    seed: int
    kind: FileKind
    width: int
    height: int
    data: bytes = field(repr=False)


Event = Started | Progress | PictureFile | Finished


class Images:
    """Generates pictures."""

    def __init__(self, models: ImageModels, pictures: Pictures, settings: ImageSettings) -> None:
        self._models = models
        self._pictures = pictures
        self._metadata = settings.metadata

    @asynccontextmanager
    async def generate(
        self, stored: StoredModel, request: ImageRequest, client: str
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Runs a request for the duration of the block; leaving the block early stops the model's work.

        The events end after Finished.

        Raises, here or while events are read:
            ModelInvalid, ModelNotReady, Unsupported: the model cannot be served, or cannot do this.
            InvalidRequest: a picture cannot be read, or a value is wrong; `param` is a field of ImageRequest.
            Overloaded: too many requests wait, or the caller's key has used up its tokens of the minute.
            Timeout, Internal, OutOfMemory: the request took too long or failed.
        """
        caller = current_caller()
        await caller.admit()
        async with self._models.loaded(stored) as model:
            resolved = ResolvedRequest(request, stored.id, model.ready, stored.desired.image_defaults)
            image, mask = None, None
            if request.task == "generate":
                parameters = resolved.parameters()
            else:
                own = request.task == "edit"
                order = Decode(image=request.image, mask=request.mask, fit=resolved.fit(), own_mask=own)
                with tracing.part("decode picture"):
                    given = await self._pictures.decode(order)
                image, mask = given.pixels, given.mask
                parameters = resolved.parameters_over(given.width, given.height, masked=mask is not None)
            prompt, negative = request.prompt, request.negative_prompt
            generate = Generate(
                client=client,
                parameters=parameters,
                draft=Draft(prompt=prompt, negative=negative, seed=resolved.seed, image=image, mask=mask),
                count=request.count,
                partials=request.partials,
                progress=request.progress,
            )
            with model.generate(generate) as job:
                try:
                    yield self._events(stored.id, generate, request.output, job)
                finally:
                    caller.spend(job.tokens(parameters.width * parameters.height * request.count))

    async def _events(
        self, model_id: str, generate: Generate, output: OutputFormat, job: GenerationJob
    ) -> AsyncIterator[Event]:
        while True:
            message = await job.next()
            if isinstance(message, Accepted):
                yield Started(model_id, generate.parameters, generate.draft.seed, message.prompt_tokens)
            elif isinstance(message, Picture):
                yield await self._file(model_id, generate, output, message)
            else:
                yield message
                if isinstance(message, Finished):
                    return

    async def _file(self, model_id: str, generate: Generate, output: OutputFormat, picture: Picture) -> PictureFile:
        seed = generate.draft.seed + picture.index
        texts = _texts(model_id, generate.parameters, seed) if self._metadata and picture.partial is None else {}
        order = Encode(
            width=picture.width,
            height=picture.height,
            pixels=picture.pixels,
            kind=output.kind,
            quality=output.quality,
            texts=texts,
        )
        with tracing.part("encode"):
            data = await self._pictures.encode(order)
        return PictureFile(
            index=picture.index,
            partial=picture.partial,
            seed=seed,
            kind=output.kind,
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


class Gallery:
    """Collects the events of a request: its parameters, its pictures in order, and its usage."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._finished: Finished | None = None
        self._pictures: dict[int, PictureFile] = {}

    def add(self, event: Event) -> None:
        """Adds the next event."""
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, PictureFile) and event.partial is None:
            self._pictures[event.index] = event
        elif isinstance(event, Finished):
            self._finished = event

    async def gather(self, events: AsyncIterator[Event]) -> None:
        """Adds all events."""
        async for event in events:
            self.add(event)

    @property
    def started(self) -> Started:
        """The Started event, with the parameters. Raises Internal if it is missing."""
        if self._started is None:
            raise Internal("the model has not accepted the request")
        return self._started

    @property
    def finished(self) -> Finished:
        """The Finished event, with the usage. Raises Internal if it is missing."""
        if self._finished is None:
            raise Internal("the model has not finished")
        return self._finished

    @property
    def pictures(self) -> list[PictureFile]:
        """The finished pictures, in order."""
        return [self._pictures[index] for index in sorted(self._pictures)]

    @property
    def facts(self) -> dict[str, int]:
        """The usage, for the request log."""
        steps = self.finished.steps
        return {"prompt": self.started.prompt_tokens, "images": len(self._pictures), "steps": steps}
