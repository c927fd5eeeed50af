"""Converts allm.image.v1's messages: requests to the core's types, and the core's events to answers."""

from __future__ import annotations

from typing import Any

from allm.image.v1 import image_pb2, image_service_pb2
from google.protobuf.message import Message

from services.errors import InvalidRequest
from services.image.api import limits
from services.image.api.gallery import Gallery
from services.image.image_request import FileKind, ImageRequest
from services.image.images import Done, Drawn, Event, Finished, Partial, Progress, Started
from services.image.recipe import Parameters

Stream = (
    image_service_pb2.StreamGenerateImageRequest
    | image_service_pb2.StreamEditImageRequest
    | image_service_pb2.StreamCreateVariationRequest
)

_KINDS: dict[int, FileKind] = {
    image_pb2.IMAGE_FORMAT_UNSPECIFIED: "png",
    image_pb2.IMAGE_FORMAT_PNG: "png",
    image_pb2.IMAGE_FORMAT_JPEG: "jpeg",
    image_pb2.IMAGE_FORMAT_WEBP: "webp",
}
_FORMATS: dict[FileKind, image_pb2.ImageFormat.ValueType] = {
    "png": image_pb2.IMAGE_FORMAT_PNG,
    "jpeg": image_pb2.IMAGE_FORMAT_JPEG,
    "webp": image_pb2.IMAGE_FORMAT_WEBP,
}


def read_generate(
    request: image_service_pb2.GenerateImageRequest | image_service_pb2.StreamGenerateImageRequest,
) -> ImageRequest:
    """Reads a generation request. Raises InvalidRequest and Unsupported."""
    return ImageRequest(
        **_common(request.config),
        **_news(request),
        task="generate",
        prompt=limits.check_prompt(request.prompt),
    )


def read_edit(
    request: image_service_pb2.EditImageRequest | image_service_pb2.StreamEditImageRequest, limit_bytes: int
) -> ImageRequest:
    """Reads an edit request. Raises InvalidRequest and Unsupported."""
    return ImageRequest(
        **_common(request.config),
        **_news(request),
        task="edit",
        prompt=limits.check_prompt(request.prompt),
        image=limits.check_file(request.image, limit_bytes, "image"),
        mask=limits.check_file(request.mask, limit_bytes, "mask") if request.mask else b"",
        strength=_number(request.strength) if request.HasField("strength") else None,
    )


def read_variation(
    request: image_service_pb2.CreateVariationRequest | image_service_pb2.StreamCreateVariationRequest, limit_bytes: int
) -> ImageRequest:
    """Reads a variation request. Raises InvalidRequest and Unsupported."""
    return ImageRequest(
        **_common(request.config),
        **_news(request),
        task="vary",
        image=limits.check_file(request.image, limit_bytes, "image"),
        strength=_number(request.strength) if request.HasField("strength") else None,
    )


def _common(config: image_pb2.ImageConfig) -> dict[str, Any]:
    kind = _KINDS.get(config.format)
    if kind is None:
        raise InvalidRequest(f"'format' is {config.format}, which is not known.", param="format")

    def given(name: str) -> Any:
        return getattr(config, name) if config.HasField(name) else None  # type: ignore[arg-type]

    return {
        "model": limits.check_model(config.model),
        "size": _size(given("width"), given("height")),
        "count": limits.check_count(given("count"), "count"),
        "seed": limits.check_seed(given("seed")),
        "steps": given("steps"),
        "guidance": _number(config.guidance) if config.HasField("guidance") else None,
        "negative_prompt": limits.check_prompt(config.negative_prompt, "negative_prompt", required=False),
        "scheduler": config.scheduler,
        "output": limits.check_output(kind, given("compression"), "compression"),
    }


def _news(request: Message) -> dict[str, Any]:
    """Returns the fields for previews and progress, which only streaming requests have."""
    if not isinstance(request, Stream):
        return {}
    return {"partials": limits.check_partials(request.partial_images, "partial_images"), "progress": True}


def _number(value: float) -> float:
    """Restores the caller's decimal number: as a 32-bit float 0.7 is slightly less, and 7 of 10 steps become 6."""
    return float(f"{value:.7g}")


def _size(width: int | None, height: int | None) -> tuple[int, int] | None:
    if width is None and height is None:
        return None
    if width is None or height is None:
        missing = "width" if width is None else "height"
        raise InvalidRequest(f"'{missing}' is missing: width and height come together.", param=missing)
    return width, height


def image_message(drawn: Drawn) -> image_pb2.Image:
    """Converts a picture."""
    return image_pb2.Image(
        index=drawn.index,
        data=drawn.data,
        format=_FORMATS[drawn.kind],
        width=drawn.width,
        height=drawn.height,
        seed=drawn.seed,
    )


def answer_fields(gallery: Gallery) -> dict[str, Any]:
    """Returns the fields that all unary answers share."""
    return {
        "model": gallery.started.model_id,
        "images": [image_message(drawn) for drawn in gallery.pictures],
        "parameters": _parameters(gallery.started.parameters),
        "usage": _usage(gallery.finished),
    }


def event_fields(event: Event) -> dict[str, Any]:
    """Converts an event to the field that it has in all streaming answers."""
    if isinstance(event, Started):
        parameters = _parameters(event.parameters)
        return {"started": image_service_pb2.ImageStarted(model=event.model_id, parameters=parameters)}
    if isinstance(event, Progress):
        return {"progress": image_service_pb2.ImageProgress(step=event.step, steps=event.steps)}
    if isinstance(event, Partial):
        return {"partial": image_service_pb2.PartialImage(number=event.number, image=image_message(event.drawn))}
    if isinstance(event, Done):
        return {"image": image_message(event.drawn)}
    return {"finished": image_service_pb2.ImageFinished(usage=_usage(event))}


def _parameters(drawn: Parameters) -> image_pb2.ImageParameters:
    return image_pb2.ImageParameters(
        width=drawn.width,
        height=drawn.height,
        seed=drawn.seed,
        steps=drawn.steps,
        guidance=drawn.guidance,
        scheduler=drawn.scheduler,
        strength=drawn.strength,
    )


def _usage(finished: Finished) -> image_pb2.ImageUsage:
    return image_pb2.ImageUsage(prompt_tokens=finished.prompt_tokens, steps=finished.steps, seconds=finished.seconds)
