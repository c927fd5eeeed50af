"""Which scope a request needs, by its path. The services look at that again, by what they are really asked to do.

What asks models needs `inference`, managing anything needs `admin`, and to read which models there are any key will do.
A path that leads nowhere needs what inference does, so that its caller hears that there is nothing.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from services.auth.identity import ADMIN, INFERENCE

OURS = "/allm."
ANY = ""  # any key
# Of our gRPC services what is not named here needs `admin`: a method that is new, too.
_INFERENCE_SERVICES = (
    "/allm.text.v1.ChatService/",
    "/allm.text.v1.EmbeddingService/",
    "/allm.text.v1.ResponseService/",
    "/allm.audio.v1.TranscriptionService/",
    "/allm.image.v1.ImageService/",
    "/allm.openai.v1.TextService/",
    "/allm.openai.v1.ResponsesService/",
    "/allm.openai.v1.AudioService/",
    "/allm.openai.v1.ImagesService/",
)
_READING = frozenset(
    (
        "/allm.openai.v1.ModelsService/ListModels",
        "/allm.openai.v1.ModelsService/GetModel",
        "/allm.models.v1.ModelService/GetModel",
        "/allm.models.v1.ModelService/ListModels",
        "/allm.models.v1.ModelService/ExplainModel",
    )
)
_SLASHES = re.compile("/{2,}")
_MODELS = re.compile("/v1/models([/:].*)?", re.DOTALL)
_KEYS = re.compile("/v1/api_keys([/:].*)?", re.DOTALL)


def needed_scope(method: str, path: str) -> str:
    """The scope for an HTTP request, or ANY; `path` as it was sent, with its query. gRPC is HTTP, too."""
    # However it is spelled: who decodes what on the way is not asked here.
    plain = _SLASHES.sub("/", unquote(path.partition("?")[0]))
    if plain.startswith(OURS):
        if plain in _READING:
            return ANY
        return INFERENCE if plain.startswith(_INFERENCE_SERVICES) else ADMIN
    if _MODELS.fullmatch(plain):
        return ANY if method == "GET" else ADMIN
    return ADMIN if _KEYS.fullmatch(plain) else INFERENCE
