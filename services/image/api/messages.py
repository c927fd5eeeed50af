"""Converts allm.image.v1's messages: requests to the core's types, and the core's events to answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allm.image.v1 import image_pb2, image_service_pb2
from google.protobuf.message import Message

from services.errors import InvalidRequest
from services.image.api import limits
from services.image.engine.messages import Progress
from services.image.images import Event, Gallery, PictureFile, Started
from services.image.parameters import ImageRequest
from services.pictures.messages import FileKind

REST: Mapping[str, str] = {"width": "size", "height": "size", "count": "n", "negative": "negative_prompt"}
TYPED: Mapping[str, str] = {"size": "width", "n": "count", "negative": "negative_prompt"}


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
        **_streaming_fields(request),
        task="generate",
        prompt=limits.check_prompt(request.prompt),
    )


def read_edit(
    request: image_service_pb2.EditImageRequest | image_service_pb2.StreamEditImageRequest, limit_bytes: int
) -> ImageRequest:
    """Reads an edit request. Raises InvalidRequest and Unsupported."""
    return ImageRequest(
        **_common(request.config),
        **_streaming_fields(request),
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
        **_streaming_fields(request),
        task="vary",
        image=limits.check_file(request.image, limit_bytes, "image"),
        strength=_number(request.strength) if request.HasField("strength") else None,
    )


def _common(config: image_pb2.ImageConfig) -> dict[str, Any]:
    kind = _KINDS.get(config.format)
    if kind is None:
        raise InvalidRequest(f"'format' has the unknown value {config.format}.", param="format")

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


def _streaming_fields(request: Message) -> dict[str, Any]:
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
        raise InvalidRequest(f"'{missing}' is missing: set both width and height.", param=missing)
    return width, height


def image_message(picture: PictureFile) -> image_pb2.Image:
    """Converts a picture."""
    return image_pb2.Image(
        index=picture.index,
        data=picture.data,
        format=_FORMATS[picture.kind],
        width=picture.width,
        height=picture.height,
        seed=picture.seed,
    )


def answer_fields(gallery: Gallery) -> dict[str, Any]:
    """Returns the fields that all unary answers share."""
    return {
        "model": gallery.started.model_id,
        "images": [image_message(picture) for picture in gallery.pictures],
        "parameters": _parameters(gallery.started),
        "usage": _usage(gallery),
    }


def event_fields(event: Event, gallery: Gallery) -> dict[str, Any]:
    """Converts an event to the field that it has in all streaming answers. The gallery has the event already."""
    if isinstance(event, Started):
        return {"started": image_service_pb2.ImageStarted(model=event.model_id, parameters=_parameters(event))}
    if isinstance(event, Progress):
        return {"progress": image_service_pb2.ImageProgress(step=event.step, steps=event.steps)}
    if isinstance(event, PictureFile):
        image = image_message(event)
        if event.partial is None:
            return {"image": image}
        return {"partial": image_service_pb2.PartialImage(number=event.partial, image=image)}
    return {"finished": image_service_pb2.ImageFinished(usage=_usage(gallery))}


def _parameters(started: Started) -> image_pb2.ImageParameters:
    return image_pb2.ImageParameters(
        width=started.parameters.width,
        height=started.parameters.height,
        seed=started.seed,
        steps=started.parameters.steps,
        guidance=started.parameters.guidance,
        scheduler=started.parameters.scheduler,
        strength=started.parameters.strength,
    )


def _usage(gallery: Gallery) -> image_pb2.ImageUsage:
    done = gallery.finished
    return image_pb2.ImageUsage(prompt_tokens=gallery.started.prompt_tokens, steps=done.steps, seconds=done.seconds)
