"""The twelve error codes of allm, each mapped once to gRPC and to OpenAI's REST error object.

    AllmError
    ├── InvalidRequest    INVALID_ARGUMENT     400  invalid_request_error
    ├── Unauthenticated   UNAUTHENTICATED      401  invalid_request_error / invalid_api_key
    ├── Forbidden         PERMISSION_DENIED    403  invalid_request_error / insufficient_scope
    ├── ModelNotFound     NOT_FOUND            404  invalid_request_error / model_not_found
    ├── ModelInvalid      FAILED_PRECONDITION  400  invalid_request_error / model_invalid
    ├── Unsupported       UNIMPLEMENTED        501  invalid_request_error / unsupported   (a parameter: 400)
    ├── ModelNotReady     UNAVAILABLE          503  server_error / model_not_ready        + retry-after
    ├── OutOfMemory       RESOURCE_EXHAUSTED   503  server_error / out_of_memory          + x-should-retry: false
    ├── Overloaded        RESOURCE_EXHAUSTED   429  rate_limit_error / overloaded         + retry-after
    ├── Timeout           DEADLINE_EXCEEDED    504  server_error / timeout
    ├── Cancelled         CANCELLED            499
    └── Internal          INTERNAL             500  server_error / internal

A model that a key may not use is a Forbidden with model_not_allowed (`ModelNotAllowed`); a key that has used up its
rate gets an Overloaded with rate_limit_exceeded (`RateLimited`).
A duplicate registration is an InvalidRequest with ALREADY_EXISTS, 409 and model_exists (`ModelExists`); a missing
stored response, or another caller's, one with NOT_FOUND, 404 and response_not_found (`ResponseNotFound`); a missing or
expired image one with NOT_FOUND, 404 and image_not_found (`ImageNotFound`); an unknown API key id likewise, with
key_not_found (`KeyNotFound`); a file over a limit one with OUT_OF_RANGE, 413 and request_too_large
(`RequestTooLarge`). An unreachable store of responses is an Internal with UNAVAILABLE, 503 and store_unavailable
(`StoreUnavailable`); an authorizer that does not know the keys yet likewise, with service_unavailable
(`AuthorizerUnavailable`).

A message names what the caller or the operator can act on: the parameter, the file, the bytes, the setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import grpc

# Errors travel in headers, of which gRPC callers accept 8 KiB; quotes from a request may have any length.
MAX_MESSAGE_BYTES = 1000


class AllmError(Exception):
    """An error that callers see. `param`: the request's parameter at fault, if any."""

    code: ClassVar[str]
    grpc_status: grpc.StatusCode
    http_status: int
    openai_type: ClassVar[str] = "invalid_request_error"
    openai_code: ClassVar[str | None]
    retry_seconds: ClassVar[float | None] = None  # the default of `retry_after`; None: a retry does not help

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        self.message = _short(message)
        super().__init__(self.message)
        self.param = param
        self.retry_after = self.retry_seconds if retry_after is None else retry_after

    def headers(self) -> dict[str, str]:
        """Returns the error's response headers, the same in both wire formats."""
        if self.retry_after is None:
            return {}
        return {"retry-after": str(max(1, round(self.retry_after)))}

    def openai_object(self) -> dict[str, Any]:
        """Returns the body of OpenAI's error: `{"message", "type", "param", "code"}`."""
        return {"message": self.message, "type": self.openai_type, "param": self.param, "code": self.openai_code}


class InvalidRequest(AllmError):
    """The request is invalid: the message names the parameter and the allowed values."""

    code = "INVALID_REQUEST"
    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400
    openai_code: ClassVar[str | None] = None


class ContextLengthExceeded(InvalidRequest):
    """The prompt is longer than the model's context; OpenAI's clients expect a separate code for this."""

    openai_code = "context_length_exceeded"


class ModelExists(InvalidRequest):
    """The id or alias is taken; the message names the model. Nothing was changed."""

    grpc_status = grpc.StatusCode.ALREADY_EXISTS
    http_status = 409
    openai_code = "model_exists"


class ResponseNotFound(InvalidRequest):
    """The caller has no stored response with this id."""

    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404
    openai_code = "response_not_found"


class ImageNotFound(InvalidRequest):
    """No image has this name, or it has expired."""

    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404
    openai_code = "image_not_found"


class KeyNotFound(InvalidRequest):
    """No API key has this id."""

    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404
    openai_code = "key_not_found"


class RequestTooLarge(InvalidRequest):
    """The request is over a limit, which the message names."""

    grpc_status = grpc.StatusCode.OUT_OF_RANGE
    http_status = 413
    openai_code = "request_too_large"


class Unauthenticated(AllmError):
    """The caller is unknown: a key, or a signed identity, is missing, wrong or expired."""

    code = "UNAUTHENTICATED"
    grpc_status = grpc.StatusCode.UNAUTHENTICATED
    http_status = 401
    openai_code = "invalid_api_key"


class Forbidden(AllmError):
    """The caller is known, but not allowed: its key lacks the scope that the message names."""

    code = "FORBIDDEN"
    grpc_status = grpc.StatusCode.PERMISSION_DENIED
    http_status = 403
    openai_code: ClassVar[str | None] = "insufficient_scope"


class ModelNotAllowed(Forbidden):
    """The caller's key may not use this model."""

    openai_code = "model_not_allowed"


class ModelNotFound(AllmError):
    """No model has this id or alias."""

    code = "MODEL_NOT_FOUND"
    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404
    openai_code = "model_not_found"


class ModelInvalid(AllmError):
    """The model's files are missing, corrupt or ambiguous: the message names them."""

    code = "MODEL_INVALID"
    grpc_status = grpc.StatusCode.FAILED_PRECONDITION
    http_status = 400
    openai_code = "model_invalid"


class Unsupported(AllmError):
    """No runtime, device or feature supports this. With `param`, an unsupported parameter: then 400."""

    code = "UNSUPPORTED"
    openai_code = "unsupported"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.grpc_status = grpc.StatusCode.INVALID_ARGUMENT if param else grpc.StatusCode.UNIMPLEMENTED
        self.http_status = 400 if param else 501


class ModelNotReady(AllmError):
    """The model is still being prepared; retrying later helps."""

    code = "MODEL_NOT_READY"
    grpc_status = grpc.StatusCode.UNAVAILABLE
    http_status = 503
    openai_type = "server_error"
    openai_code = "model_not_ready"
    retry_seconds = 2.0


class OutOfMemory(AllmError):
    """Memory did not suffice for a load: the message names needed and free bytes."""

    code = "OUT_OF_MEMORY"
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 503
    openai_type = "server_error"
    openai_code = "out_of_memory"

    def headers(self) -> dict[str, str]:
        """Tells clients not to retry: waiting does not free memory."""
        return {"x-should-retry": "false"}


class Overloaded(AllmError):
    """The queue is full or a rate limit is reached."""

    code = "OVERLOADED"
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 429
    openai_type = "rate_limit_error"
    openai_code: ClassVar[str | None] = "overloaded"
    retry_seconds = 1.0


class RateLimited(Overloaded):
    """The caller has used up its key's rate for the minute; the message names the rate."""

    openai_code = "rate_limit_exceeded"

    def __init__(
        self, message: str, *, retry_after: float | None = None, rates: Mapping[str, str] | None = None
    ) -> None:
        """`rates`: headers with the limit in numbers, such as OpenAI's `x-ratelimit-limit-tokens`."""
        super().__init__(message, retry_after=retry_after)
        self.rates = dict(rates or {})

    def headers(self) -> dict[str, str]:
        """Returns the time to retry, and the limit in numbers."""
        return super().headers() | self.rates


class Timeout(AllmError):
    """The deadline passed, or the watchdog killed the worker."""

    code = "TIMEOUT"
    grpc_status = grpc.StatusCode.DEADLINE_EXCEEDED
    http_status = 504
    openai_type = "server_error"
    openai_code = "timeout"


class Cancelled(AllmError):
    """The caller cancelled the request."""

    code = "CANCELLED"
    grpc_status = grpc.StatusCode.CANCELLED
    http_status = 499
    openai_type = "server_error"
    openai_code = "cancelled"


class Internal(AllmError):
    """A fault of allm: a crashed worker, a bug. The log has the cause under the request's id."""

    code = "INTERNAL"
    grpc_status = grpc.StatusCode.INTERNAL
    http_status = 500
    openai_type = "server_error"
    openai_code = "internal"


class StoreUnavailable(Internal):
    """The store of responses cannot be reached; nothing was done, and retrying later helps."""

    grpc_status = grpc.StatusCode.UNAVAILABLE
    http_status = 503
    openai_code = "store_unavailable"
    retry_seconds = 2.0


class AuthorizerUnavailable(Internal):
    """The authorizer does not know the keys at the moment; retrying later helps."""

    grpc_status = grpc.StatusCode.UNAVAILABLE
    http_status = 503
    openai_code = "service_unavailable"
    retry_seconds = 2.0


def _short(message: str) -> str:
    data = message.encode(errors="replace")
    if len(data) <= MAX_MESSAGE_BYTES:
        return data.decode()
    return data[:MAX_MESSAGE_BYTES].decode(errors="ignore") + "..."


BY_CODE: dict[str, type[AllmError]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        Unauthenticated,
        Forbidden,
        ModelNotFound,
        ModelInvalid,
        Unsupported,
        ModelNotReady,
        OutOfMemory,
        Overloaded,
        Timeout,
        Cancelled,
        Internal,
    )
}


def from_code(code: str, message: str, param: str | None = None) -> AllmError:
    """Returns the error for a worker's error code; an unknown code is Internal."""
    if code == "CONTEXT_LENGTH_EXCEEDED":
        return ContextLengthExceeded(message, param=param)
    if code == "REQUEST_TOO_LARGE":
        return RequestTooLarge(message, param=param)
    kind = BY_CODE.get(code, Internal)
    return kind(message, param=param) if kind in (InvalidRequest, Unsupported) else kind(message)
