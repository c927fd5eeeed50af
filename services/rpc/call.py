"""The wrapper of every RPC: authentication, request id, deadline, metrics, log line, and error conversion.

`typed` wraps a method of a typed service: an error becomes a gRPC status with a google.rpc.ErrorInfo, or OpenAI's error
object if the gateway transcoded a REST request. The method gets a `Call` instead of gRPC's context and may raise any
AllmError; any other exception is logged in full and returned as INTERNAL, without details. services/rest/openai/sse.py
wraps the methods of REST facades.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

import grpc
from allm.openai.v1 import error_pb2
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from services.auth.authentication import Authenticator
from services.auth.caller import current_caller, keep_caller
from services.auth.identity import ANONYMOUS, INFERENCE, SCOPES
from services.errors import AllmError, Cancelled, Internal, InvalidRequest, RateLimited, Timeout
from services.rpc.deadline import Deadline, is_cancelled, keep_deadline, read_deadline
from services.rpc.shares import Shares
from services.telemetry import logs, metrics, tracing
from services.telemetry.figures import LATENCIES

log = logging.getLogger(__name__)

SERVER_FAULT = 500
IN_BAND_SECONDS = 5.0  # longest wait for a slow reader before an error message in the stream is given up
# A worker ends its request at the caller's deadline itself, so that the answer can report it in its own format; other
# work ends this much later.
GRACE_SECONDS = 0.25
IGNORED_HEADER = "x-allm-ignored-parameters"
MOST_IGNORED = 16  # names in the header and in a log line
MOST_NAME = 64  # characters of each
AND_MORE = "..."
_NO_NAME = re.compile(r"[^A-Za-z0-9_.$\[\]-]")  # a caller's name may be any text
DETAILS = "grpc-status-details-bin"
TRANSCODED = "x-envoy-original-path"  # the gateway sets it on transcoded requests, and removes it from all others
Q = TypeVar("Q")
R = TypeVar("R")
S = TypeVar("S")
Method = Callable[[S, Q, "Call"], Awaitable[R]]
Handler = Callable[[S, Q, "grpc.aio.ServicerContext[Any, Any]"], Awaitable[R]]


class Call:
    """A running RPC."""

    slow_client_seconds: ClassVar[float] = 60.0  # how long a message may wait for a slow reader; set by `serve`
    running: ClassVar[Counter[str]] = Counter()  # requests to models, of each key with a limit
    bodies: ClassVar[Shares] = Shares()  # bytes of requests to models; set by `serve`
    unknown_refused: ClassVar[bool] = False  # whether unknown parameters are refused; set by `serve`
    authenticator: ClassVar[Authenticator] = Authenticator()  # set by `serve`

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], rpc: str) -> None:
        metadata = dict(context.invocation_metadata() or ())
        self._context = context
        self._metadata = metadata
        self.rpc = rpc
        self.request_id = str(metadata.get("x-request-id") or uuid.uuid4())
        # With keys, nobody is authenticated before `identify`, and a header that anyone can set proves nothing.
        self.client = "" if self.authenticator.required else str(metadata.get("x-client-id") or ANONYMOUS.subject)
        self.identity = ANONYMOUS
        self.transcoded = TRANSCODED in metadata  # whether the call is a REST request that the gateway transcoded
        self.started = time.monotonic()
        self.model = ""  # for logs and metrics; set only if the model exists
        self.facts: dict[str, Any] = {}  # additional fields of this request's log line
        self.answering = False  # whether the first message was sent: from then on errors must go into the stream
        self.ignored: list[str] = []  # parameters without effect on the answer, as they are shown
        self.stuck = False  # whether a sent message is still unread: no other can follow it
        self.trace: tracing.Trace | None = None  # None: tracing is off

    def identify(self, scope: str, also: str) -> None:
        """Authenticates the caller, and keeps it for all further work of this call.

        Raises:
            Unauthenticated: the caller is unknown.
            Forbidden: the caller has neither scope; everybody has an empty `scope`.
        """
        caller = self.authenticator.authenticate(self._metadata)
        self.identity = caller.identity
        if self.authenticator.required:
            self.client = caller.identity.subject
        keep_caller(caller)
        caller.check_scope(scope, also)

    @contextlib.contextmanager
    def taking_place(self, operation: str) -> Iterator[None]:
        """Counts a request to a model while the block runs.

        Raises:
            RateLimited: the caller's key has as many requests in this process as it may.
        """
        most, key = self.identity.concurrent_requests, self.identity.subject
        if not (operation and most):
            yield
            return
        if self.running[key] >= most:
            raise RateLimited(f"The key {key} has {most} requests in progress, which is its limit.")
        self.running[key] += 1
        try:
            yield
        finally:
            self.running[key] -= 1
            if not self.running[key]:
                del self.running[key]

    def holding(self, request: object, operation: str) -> contextlib.AbstractContextManager[None]:
        """Counts the bytes of a request to a model while the block runs; a stream of uploads has limits of its own.

        Raises:
            RequestTooLarge: the request alone exceeds the limit of the caller's key.
            RateLimited: the caller's key has as many bytes in progress as it may.
            Overloaded: all bytes are in use, and the caller's key has its share.
        """
        if not (operation and isinstance(request, Message)):
            return contextlib.nullcontext()
        return self.bodies.hold(self.client, request.ByteSize(), self.identity.bytes_in_flight)

    def header(self, name: str) -> str:
        """Returns a header of the request; empty: it has none."""
        return str(self._metadata.get(name, ""))

    def deadline(self) -> Deadline | None:
        """Returns the caller's deadline. Raises InvalidRequest if the header is no number of seconds."""
        return read_deadline(self._metadata, self._context.time_remaining())

    def ignore(self, names: Iterable[str]) -> None:
        """Names parameters without effect on the answer, in the response's header, the log line and a metric."""
        for name in names:
            if len(self.ignored) < MOST_IGNORED:
                self.ignored.append(shown_name(name))
            elif self.ignored[-1] != AND_MORE:
                self.ignored.append(AND_MORE)

    def ignore_unknown(self, names: Sequence[str]) -> None:
        """As `ignore`, for unknown parameters. Raises InvalidRequest if there are any and the operator refuses them."""
        if names and self.unknown_refused:
            message = f"Unknown parameter: '{shown_name(names[0])}' (ALLM_UNKNOWN_PARAMETERS=refuse)."
            raise InvalidRequest(message, param=shown_name(names[0]))
        self.ignore(names)

    async def send_headers(self) -> None:
        """Sends the response's own headers, if there are any. No error can follow as an HTTP status."""
        if self.ignored:
            await self._context.send_initial_metadata(self._ignored_header())

    def _ignored_header(self) -> tuple[tuple[str, str], ...]:
        return ((IGNORED_HEADER, ", ".join(self.ignored)),) if self.ignored else ()

    async def send(self, message: Any) -> None:
        """Sends one message of a stream; waits if the caller reads slowly.

        Raises:
            Timeout: the caller has read nothing for `slow_client_seconds`.
        """
        if not self.answering:
            await self.send_headers()
        self.answering = self.stuck = True
        seconds = self.slow_client_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._context.write(message)
            self.stuck = False
        except TimeoutError:
            unread = f"the client has read nothing of the answer for {seconds:g} seconds (ALLM_SLOW_CLIENT_SECONDS)"
            raise Timeout(unread) from None

    async def abort(self, error: AllmError, details: bytes, *, rest: bool) -> NoReturn:
        """Ends the RPC with an error. Before the first message the gateway turns its metadata into HTTP headers."""
        metadata: list[tuple[str, str | bytes]] = [(DETAILS, details), *error.headers().items()]
        if rest:
            metadata.append(("x-http-status", str(error.http_status)))
            if not self.answering:
                metadata += self._ignored_header()
        try:
            async with asyncio.timeout(IN_BAND_SECONDS if self.answering else None):
                await self._context.abort(error.grpc_status, error.message, tuple(metadata))
        except TimeoutError:
            # The status may wait forever behind unread messages: gRPC has it, and nothing else is left to do.
            raise asyncio.CancelledError from None
        raise AssertionError("abort returned")


def typed(
    seconds: float | None = None, *, quiet: bool = False, scope: str = INFERENCE, also: str = "", operation: str = ""
) -> Callable[[Method[S, Q, R]], Handler[S, Q, R]]:
    """Wraps a method of a typed service. `seconds`: its time limit; None: the method has its own.

    `quiet`: successful calls are logged at debug level only; for heartbeats. `scope`: the scope that callers need; "":
    any known caller. `also`: another scope that suffices. `operation`: the kind of inference, in the words of the
    metrics; "": no inference.
    """
    return wrapper(seconds, scope, operation, quiet, also=also)


def wrapper(
    seconds: float | None,
    scope: str,
    operation: str,
    quiet: bool = False,
    in_band: Callable[[AllmError], Any] | None = None,
    also: str = "",
) -> Callable[[Method[S, Q, R]], Handler[S, Q, R]]:
    """Creates gRPC's handler for a method. `in_band` creates the last message of a failed stream, for REST callers.

    Raises:
        ValueError: no scope has this name.
    """
    if unknown := {scope, also} - {""} - SCOPES:
        raise ValueError(f"there is no scope {unknown.pop()!r}")
    return functools.partial(
        _wrap, seconds=seconds, scope=scope, also=also, operation=operation, quiet=quiet, in_band=in_band
    )


def _wrap(
    method: Method[S, Q, R],
    seconds: float | None,
    scope: str,
    also: str,
    operation: str,
    quiet: bool,
    in_band: Callable[[AllmError], Any] | None,
) -> Handler[S, Q, R]:
    @functools.wraps(method)
    async def handle(servicer: S, request: Q, context: grpc.aio.ServicerContext[Any, Any]) -> R:
        call = Call(context, f"{type(servicer).__name__}.{method.__name__}")
        logs.request_id.set(call.request_id)
        metrics.operation.set(operation)
        if tracing.tracer and not quiet:
            call.trace = tracing.begin(servicer, method.__name__, call.started, call._metadata, operation)
        error: AllmError
        try:
            call.identify(scope, also)
            with call.taking_place(operation), call.holding(request, operation):
                result = await _limited(method, servicer, request, call, seconds)
                if result is not None:  # otherwise it was sent
                    await call.send_headers()
        except AllmError as known:
            error = known
        except asyncio.CancelledError:
            if is_cancelled():
                _finish(call, Cancelled("the caller gave up"))
                raise
            # Something that the call waited for was cancelled, not the call. gRPC would take this for a cancelled call
            # and never end it.
            error = _unexpected(call)
        except Exception:
            error = _unexpected(call)
        else:
            _finish(call, None, quiet)
            return result
        _finish(call, error)
        error = _shown(error)
        if in_band and call.answering and not call.stuck:
            # A REST client takes an error status after the first message for a normal end.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(call.send(in_band(error)), IN_BAND_SECONDS)
        if in_band or call.transcoded:
            return await call.abort(error, _openai_details(error), rest=True)
        return await call.abort(error, typed_details(error, call.request_id), rest=False)

    handle.__dict__.update(scope=scope, operation=operation)  # for tests of all handlers
    return handle


def _shown(error: AllmError) -> AllmError:
    """Returns an error as the caller may see it: paths are the operator's business. What a caller wrote stays."""
    message = error.message if isinstance(error, InvalidRequest) else current_caller().shown(error.message)
    if message != error.message:
        error = copy.copy(error)  # others may raise the same one
        error.message = message
    return error


def shown_name(name: str) -> str:
    """Returns a caller's name of a parameter as it may be shown in a header and in the log."""
    return _NO_NAME.sub("?", name[:MOST_NAME])


def _unexpected(call: Call) -> Internal:
    """Logs an unexpected error in full, and returns the caller's error without details."""
    log.exception("unexpected error in %s", call.rpc)
    return Internal(f"internal error; the service's log has it under request id {call.request_id}")


async def _limited(method: Method[S, Q, R], servicer: S, request: Q, call: Call, seconds: float | None) -> R:
    """Runs a method within its own time limit and the caller's deadline. Raises Timeout when one of them passes."""
    deadline = call.deadline()
    keep_deadline(deadline)
    left = deadline.remaining + GRACE_SECONDS if deadline else None
    error = deadline.error() if deadline else None
    if seconds is not None and (left is None or seconds < left):
        left, error = seconds, Timeout(f"the request took longer than {seconds:g} seconds")
    limit = asyncio.timeout(left)
    try:
        async with limit:
            return await method(servicer, request, call)
    except TimeoutError:
        if error and limit.expired():
            raise error from None
        raise


def _finish(call: Call, error: AllmError | None, quiet: bool = False) -> None:
    """Counts and logs the end of a request. Called once."""
    seconds = time.monotonic() - call.started
    metrics.REQUESTS.labels(call.rpc, call.model).inc()
    if call.ignored:
        metrics.IGNORED_PARAMETERS.labels(call.rpc, call.model).inc(len(call.ignored))
        call.facts["ignored"] = call.ignored
    if operation := metrics.operation.get():
        labels = metrics.gen_ai(call.model, operation)
        metrics.SERVER_DURATION.labels(*labels, error.code if error else "").observe(seconds)
        if not error:
            LATENCIES.record("request", call.model, seconds)
    else:
        metrics.DURATION.labels(call.rpc, call.model).observe(seconds)
    if call.trace:
        attributes = {"allm.request_id": call.request_id, "allm.client": call.client}
        tracing.finish(call.trace, attributes, call.model, error)
    facts = {"rpc": call.rpc, "client": call.client, "model": call.model, "ms": round(seconds * 1000), **call.facts}
    if error:
        metrics.ERRORS.labels(call.rpc, error.code, call.model).inc()
        # The message of a caller's mistake may quote the request, which is never logged.
        message = error.message if error.http_status >= SERVER_FAULT else ""
        log.info("request failed", extra={**facts, "code": error.code, "param": error.param, "error": message})
    else:
        log.log(logging.DEBUG if quiet else logging.INFO, "request done", extra=facts)


def typed_details(error: AllmError, request_id: str) -> bytes:
    """Returns gRPC callers' `grpc-status-details-bin`: a google.rpc.Status with a google.rpc.ErrorInfo."""
    info = error_details_pb2.ErrorInfo(reason=error.code, domain="allm", metadata={"request_id": request_id})
    if error.param:
        info.metadata["param"] = error.param
    packed = any_pb2.Any()
    packed.Pack(info)
    status = status_pb2.Status(code=error.grpc_status.value[0], message=error.message, details=[packed])
    return bytes(status.SerializeToString())


def _openai_details(error: AllmError) -> bytes:
    body = error.openai_object()
    status = error_pb2.ErrorStatus(error=error_pb2.Error(message=body["message"], type=body["type"]))
    for field in ("param", "code"):
        value = getattr(status.error, field)
        if body[field] is None:
            value.null_value = 0
        else:
            value.string_value = body[field]
    return status.SerializeToString()
