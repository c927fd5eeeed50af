"""Admission of requests: by the key, its scopes and its rate.

All lookups are in memory, because every request waits for them; rates are shared with other gateways beside requests
(services/auth/token_rates.py). Inference needs the scope `inference`, management needs
`admin`, and any key may list models. An unknown path needs `inference`, so that its caller gets a 404. The services
check again, by the method that is really called.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from services.auth.identity import ADMIN, INFERENCE, LIFETIME_SECONDS, WATCH_MEMORY, Identity, sign
from services.auth.identity_keys import SigningKey
from services.auth.key_format import MAX_CHARACTERS, PREFIX
from services.auth.token_rates import REQUESTS, SLACK, TokenRates
from services.authorizer.key_table import KeyTable, KnownKey
from services.errors import AuthorizerUnavailable, Forbidden, Unauthenticated

OURS = "/allm."
ANY = ""  # any key
# Our other gRPC methods need `admin`, including new ones.
_INFERENCE_SERVICES = (
    "/allm.text.v1.ChatService/",
    "/allm.text.v1.EmbeddingService/",
    "/allm.text.v1.RerankService/",
    "/allm.text.v1.ResponseService/",
    "/allm.audio.v1.TranscriptionService/",
    "/allm.image.v1.ImageService/",
    "/allm.anthropic.v1.MessagesService/",
    "/allm.ollama.v1.TextService/",
    "/allm.openai.v1.TextService/",
    "/allm.openai.v1.ResponsesService/",
    "/allm.openai.v1.ConversationsService/",
    "/allm.openai.v1.AudioService/",
    "/allm.openai.v1.ImagesService/",
)
_READING = frozenset(
    (
        "/allm.openai.v1.ModelsService/ListModels",
        "/allm.openai.v1.ModelsService/GetModel",
        "/allm.ollama.v1.ModelsService/GetVersion",
        "/allm.ollama.v1.ModelsService/ListRunning",
        "/allm.ollama.v1.ModelsService/ListTags",
        "/allm.ollama.v1.ModelsService/ShowModel",
        "/allm.models.v1.ModelService/GetModel",
        "/allm.models.v1.ModelService/ListModels",
        "/allm.models.v1.ModelService/ExplainModel",
    )
)
# The catalog's. All others go to services that read what callers send.
_CATALOG_SERVICES = (
    "/allm.models.v1.ModelService/",
    "/allm.models.v1.MachineService/",
    "/allm.openai.v1.ModelsService/",
    "/allm.ollama.v1.ModelsService/",
    "/allm.keys.v1.KeyService/",
)
_SLASHES = re.compile("/{2,}")
_MODELS = re.compile("/v1/models([/:].*)?", re.DOTALL)
# Ollama's paths of the catalog.
_OLLAMA_READING = frozenset(("/api/ps", "/api/show", "/api/tags", "/api/version"))
_OLLAMA_MANAGING = frozenset(("/api/delete", "/api/pull"))
_KEYS = re.compile("/v1/api_keys([/:].*)?", re.DOTALL)
# A signed identity is reused for all calls of a key while it is valid for at least this long.
LEAST_SECONDS = 40
SHOWN = f"Authorization: Bearer {PREFIX}..."


def needed_scope(method: str, path: str) -> str:
    """Returns the scope that an HTTP or gRPC request needs, or ANY; `path` as it was sent, with its query."""
    plain = _plain(path)
    if plain.startswith(OURS):
        if plain in _READING:
            return ANY
        return INFERENCE if plain.startswith(_INFERENCE_SERVICES) else ADMIN
    if _MODELS.fullmatch(plain):
        return ANY if method == "GET" else ADMIN
    if plain in _OLLAMA_READING:
        return ANY
    if plain in _OLLAMA_MANAGING:
        return ADMIN
    return ADMIN if _KEYS.fullmatch(plain) else INFERENCE


def passed_scopes(path: str, scopes: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the scopes of a key that the identity of a request gets.

    A service of models could use an identity that it received in the caller's name, so only the catalog gets `admin`.
    """
    plain = _plain(path)
    ollamas = plain in _OLLAMA_READING or plain in _OLLAMA_MANAGING
    if plain.startswith(_CATALOG_SERVICES) or _MODELS.fullmatch(plain) or _KEYS.fullmatch(plain) or ollamas:
        return scopes
    return tuple(WATCH_MEMORY if scope == ADMIN else scope for scope in scopes)


def _plain(path: str) -> str:
    """Normalizes a path, because decoding may differ along the way."""
    return _SLASHES.sub("/", unquote(path.partition("?")[0]))


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """The parts of a request that the decision depends on."""

    method: str
    path: str  # with its query
    authorization: str  # the header, or what it would be; empty: none


@dataclass(frozen=True, slots=True)
class RateState:
    """The state of a key's rate of requests at one moment, in OpenAI's terms. An admitted request reports it."""

    limit: int  # requests per minute
    remaining: int  # requests that may come immediately
    reset_seconds: int  # until the bucket is full again, rounded up

    @classmethod
    def of(cls, per_minute: int, used: float) -> RateState:
        """Returns the state of a key that has used so many requests, which drain evenly."""
        missing = used - SLACK
        return cls(per_minute, int(per_minute - missing), max(0, math.ceil(missing * 60 / per_minute)))

    def headers(self) -> dict[str, str]:
        """Returns the state as HTTP headers."""
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{self.reset_seconds}s",
        }


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admitted request, with the identity that it carries from here on."""

    client: str  # the key's id
    identity: str  # signed
    rate: RateState | None = None  # None: the key has no request limit


class Gatekeeper:
    """Decides from the key table. `rates`: of requests. `clock`: seconds since the epoch."""

    def __init__(
        self,
        table: KeyTable,
        signing: SigningKey,
        rates: TokenRates | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table = table
        self._signing = signing
        self._rates = rates or TokenRates(counted=REQUESTS)
        self._clock = clock
        self._signed: dict[str, dict[tuple[str, ...], tuple[str, int]]] = {}  # by key id and scopes: with its expiry
        table.on_removal = self._forget

    async def check(self, request: CheckedRequest) -> Admitted:
        """Admits a request. Waits only for the count of a key that has asked nothing here for a while, and briefly.

        Raises:
            Unauthenticated: it has no key, or an invalid one.
            Forbidden: the key lacks the scope.
            RateLimited: the key has reached its request limit.
            AuthorizerUnavailable: no keys are known yet.
        """
        key = self._key(request.authorization)
        scope = needed_scope(request.method, request.path)
        if scope and scope not in key.scopes:
            raise Forbidden(f"This needs the scope '{scope}', which the key {key.id} does not have.")
        rate = await self._take(key) if key.requests_per_minute else None
        return Admitted(key.id, self._identity(key, passed_scopes(request.path, key.scopes)), rate)

    def _key(self, authorization: str) -> KnownKey:
        scheme, _, shown = authorization.strip().partition(" ")
        shown = shown.strip()
        if not shown or scheme.lower() != "bearer":
            raise Unauthenticated(f"Missing API key: send yours in the header '{SHOWN}', or in 'x-api-key'.")
        key = self._table.find(shown) if len(shown) <= MAX_CHARACTERS else None
        if key is None and not self._table.loaded:
            raise AuthorizerUnavailable(
                "API keys cannot be checked yet: the gateway has not received them from the catalog."
            )
        if key is None:
            raise Unauthenticated("Incorrect API key provided: it is not known here, or was revoked.")
        if 0 < key.expires <= self._clock():
            raise Unauthenticated(f"The API key {key.id} has expired.")
        return key

    async def _take(self, key: KnownKey) -> RateState:
        await self._rates.admit(key.id, key.requests_per_minute)
        self._rates.charge(key.id, key.requests_per_minute, 1)
        return RateState.of(key.requests_per_minute, self._rates.used(key.id, key.requests_per_minute))

    def _identity(self, key: KnownKey, scopes: tuple[str, ...]) -> str:
        now = int(self._clock())
        signed = self._signed.setdefault(key.id, {})
        text, expires = signed.get(scopes, ("", 0))
        if not LEAST_SECONDS <= expires - now <= LIFETIME_SECONDS:  # also where the clock was set back
            expires = now + LIFETIME_SECONDS
            identity = Identity(
                key.id,
                frozenset(scopes),
                key.models,
                key.tokens_per_minute,
                expires,
                key.concurrent_requests,
                key.bytes_in_flight,
                key.stored_bytes,
            )
            text = sign(identity, self._signing)
            signed[scopes] = (text, expires)
        return text

    def _forget(self, key_id: str) -> None:
        self._signed.pop(key_id, None)
        self._rates.forget(key_id)
