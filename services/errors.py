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

A model that a key may not use is a Forbidden told as model_not_allowed (`ModelNotAllowed`); a key that has used up its
rate gets an Overloaded told as rate_limit_exceeded (`RateLimited`).
A duplicate registration is an InvalidRequest told as ALREADY_EXISTS, 409 and model_exists (`ModelExists`); a stored
response that is not there, or another's, one told as NOT_FOUND, 404 and response_not_found (`ResponseNotFound`); a
picture whose address has expired, or never was, one told as NOT_FOUND, 404 and image_not_found (`ImageNotFound`); an
API key of an unknown id likewise, with key_not_found (`KeyNotFound`); a file over a limit one told as OUT_OF_RANGE, 413
and request_too_large (`RequestTooLarge`). An Internal told as UNAVAILABLE, 503 and store_unavailable: the store of
responses cannot be reached (`StoreUnavailable`); likewise with service_unavailable: nothing is known of keys yet
(`AuthorizerUnavailable`).

A message names what the caller or the operator can act on: the parameter, the file, the bytes, the setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import grpc

# Errors travel in headers, of which gRPC callers take 8 KiB; what a message quotes from a request may be of any length.
MAX_MESSAGE_BYTES = 1000


class AllmError(Exception):
    """An error that callers see. `param` is the request's parameter at fault, if there is one."""

    code: ClassVar[str]
    grpc_status: grpc.StatusCode
    http_status: int
    openai_type: ClassVar[str]
    openai_code: ClassVar[str | None]

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        self.message = _short(message)
        super().__init__(self.message)
        self.param = param
        self.retry_after = retry_after

    def headers(self) -> dict[str, str]:
        """Response headers that belong to the error, the same in both wire formats."""
        if self.retry_after is None:
            return {}
        return {"retry-after": str(max(1, round(self.retry_after)))}

    def openai_object(self) -> dict[str, Any]:
        """The body of OpenAI's error: `{"message", "type", "param", "code"}`."""
        return {"message": self.message, "type": self.openai_type, "param": self.param, "code": self.openai_code}


class InvalidRequest(AllmError):
    """The request is wrong in itself: its message names the parameter and what is allowed."""

    code = "INVALID_REQUEST"
    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400
    openai_type = "invalid_request_error"
    openai_code: ClassVar[str | None] = None


class ContextLengthExceeded(InvalidRequest):
    """The prompt is longer than the model's context; OpenAI's clients know this by a code of its own."""

    openai_code = "context_length_exceeded"


class ModelExists(InvalidRequest):
    """The id or alias is taken; the message says by what. Nothing was changed."""

    grpc_status = grpc.StatusCode.ALREADY_EXISTS
    http_status = 409
    openai_code = "model_exists"


class ResponseNotFound(InvalidRequest):
    """The caller has no stored response of that id."""

    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404
    openai_code = "response_not_found"


class ImageNotFound(InvalidRequest):
    """There is no picture of that name, or not any more."""

    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404
    openai_code = "image_not_found"


class KeyNotFound(InvalidRequest):
    """There is no API key of that id."""

    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404
    openai_code = "key_not_found"


class RequestTooLarge(InvalidRequest):
    """What was sent is over a limit, which the message names."""

    grpc_status = grpc.StatusCode.OUT_OF_RANGE
    http_status = 413
    openai_code = "request_too_large"


class Unauthenticated(AllmError):
    """Nobody knows who calls: a key, or a signed identity, is missing, wrong or over."""

    code = "UNAUTHENTICATED"
    grpc_status = grpc.StatusCode.UNAUTHENTICATED
    http_status = 401
    openai_type = "invalid_request_error"
    openai_code = "invalid_api_key"


class Forbidden(AllmError):
    """The caller is known, and may not do this: its key lacks the scope, which the message names."""

    code = "FORBIDDEN"
    grpc_status = grpc.StatusCode.PERMISSION_DENIED
    http_status = 403
    openai_type = "invalid_request_error"
    openai_code: ClassVar[str | None] = "insufficient_scope"


class ModelNotAllowed(Forbidden):
    """The caller's key may not use this model."""

    openai_code = "model_not_allowed"


class ModelNotFound(AllmError):
    """No model of that id or alias."""

    code = "MODEL_NOT_FOUND"
    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404
    openai_type = "invalid_request_error"
    openai_code = "model_not_found"


class ModelInvalid(AllmError):
    """The model's files are missing, corrupt or ambiguous: the message names them."""

    code = "MODEL_INVALID"
    grpc_status = grpc.StatusCode.FAILED_PRECONDITION
    http_status = 400
    openai_type = "invalid_request_error"
    openai_code = "model_invalid"


class Unsupported(AllmError):
    """No runtime, device or feature for this. With `param`, a parameter that cannot be honoured: then 400."""

    code = "UNSUPPORTED"
    openai_type = "invalid_request_error"
    openai_code = "unsupported"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.grpc_status = grpc.StatusCode.INVALID_ARGUMENT if param else grpc.StatusCode.UNIMPLEMENTED
        self.http_status = 400 if param else 501


class ModelNotReady(AllmError):
    """The model is on its way; asking again later helps."""

    code = "MODEL_NOT_READY"
    grpc_status = grpc.StatusCode.UNAVAILABLE
    http_status = 503
    openai_type = "server_error"
    openai_code = "model_not_ready"

    def __init__(self, message: str, *, retry_after: float = 2.0) -> None:
        super().__init__(message, retry_after=retry_after)


class OutOfMemory(AllmError):
    """Loading was refused, or failed, for want of memory: the message says needed and free."""

    code = "OUT_OF_MEMORY"
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 503
    openai_type = "server_error"
    openai_code = "out_of_memory"

    def headers(self) -> dict[str, str]:
        """Asks clients not to retry: more memory does not come by waiting."""
        return {"x-should-retry": "false"}


class Overloaded(AllmError):
    """The queue is full or a rate limit is reached."""

    code = "OVERLOADED"
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 429
    openai_type = "rate_limit_error"
    openai_code: ClassVar[str | None] = "overloaded"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after=retry_after)


class RateLimited(Overloaded):
    """The caller has used up what its key may use in a minute; the message says what of, and how much."""

    openai_code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: float = 1.0, rates: Mapping[str, str] | None = None) -> None:
        """`rates`: headers that tell of the limit in numbers, as OpenAI's `x-ratelimit-limit-tokens`."""
        super().__init__(message, retry_after=retry_after)
        self.rates = dict(rates or {})

    def headers(self) -> dict[str, str]:
        """When to come again, and the limit in numbers."""
        return super().headers() | self.rates


class Timeout(AllmError):
    """The deadline passed, or the watchdog ended the work."""

    code = "TIMEOUT"
    grpc_status = grpc.StatusCode.DEADLINE_EXCEEDED
    http_status = 504
    openai_type = "server_error"
    openai_code = "timeout"


class Cancelled(AllmError):
    """The caller gave up."""

    code = "CANCELLED"
    grpc_status = grpc.StatusCode.CANCELLED
    http_status = 499
    openai_type = "server_error"
    openai_code = "cancelled"


class Internal(AllmError):
    """A fault of allm's: a crashed worker, a bug. The cause is in the log under the request's id."""

    code = "INTERNAL"
    grpc_status = grpc.StatusCode.INTERNAL
    http_status = 500
    openai_type = "server_error"
    openai_code = "internal"


class StoreUnavailable(Internal):
    """The store of responses cannot be reached; nothing was done, and asking again later helps."""

    grpc_status = grpc.StatusCode.UNAVAILABLE
    http_status = 503
    openai_code = "store_unavailable"

    def __init__(self, message: str, *, retry_after: float = 2.0) -> None:
        super().__init__(message, retry_after=retry_after)


class AuthorizerUnavailable(Internal):
    """Nobody can say at the moment which keys there are; asking again later helps."""

    grpc_status = grpc.StatusCode.UNAVAILABLE
    http_status = 503
    openai_code = "service_unavailable"

    def __init__(self, message: str, *, retry_after: float = 2.0) -> None:
        super().__init__(message, retry_after=retry_after)


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
    """The error for a code that came from a worker; an unknown code is Internal."""
    if code == "CONTEXT_LENGTH_EXCEEDED":
        return ContextLengthExceeded(message, param=param)
    if code == "REQUEST_TOO_LARGE":
        return RequestTooLarge(message, param=param)
    kind = BY_CODE.get(code, Internal)
    return kind(message, param=param) if kind in (InvalidRequest, Unsupported) else kind(message)
