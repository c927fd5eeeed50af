"""The scope that a request needs, by its path. The services check again, by the method that is really called.

Inference needs `inference`, management needs `admin`, and any key may list models. An unknown path needs `inference`,
so that its caller gets a 404.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from services.auth.identity import ADMIN, INFERENCE

OURS = "/allm."
ANY = ""  # any key
# Our other gRPC methods need `admin`, including new ones.
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
    """Returns the scope that an HTTP or gRPC request needs, or ANY; `path` as it was sent, with its query."""
    # Normalized, because decoding may differ along the way.
    plain = _SLASHES.sub("/", unquote(path.partition("?")[0]))
    if plain.startswith(OURS):
        if plain in _READING:
            return ANY
        return INFERENCE if plain.startswith(_INFERENCE_SERVICES) else ADMIN
    if _MODELS.fullmatch(plain):
        return ANY if method == "GET" else ADMIN
    return ADMIN if _KEYS.fullmatch(plain) else INFERENCE
