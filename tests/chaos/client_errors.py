"""Errors as the gateway's clients get them, and a check that they name the problem."""

from __future__ import annotations

import json
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from tests.chaos.outcome import CutCall, LostAnswer, RefusedCall

# The codes of docs/errors.md, and those of Envoy in docs/gateway.md.
CODES = frozenset(
    (
        "model_not_found",
        "model_invalid",
        "unsupported",
        "model_not_ready",
        "out_of_memory",
        "overloaded",
        "timeout",
        "internal",
        "store_unavailable",
        "service_unavailable",
    )
)
REASONS = frozenset(code.upper() for code in CODES)
SHOWN = 200  # characters of a message in a report


def refusal(body: bytes, status: int) -> Exception:
    """Converts an unsuccessful response into an exception."""
    try:
        error: dict[str, Any] = json.loads(body)["error"]
        code, message = error["code"], error["message"]
    except (ValueError, LookupError, TypeError):
        return LostAnswer(f"{status} without an error that can be read: {body[:SHOWN]!r}")
    if code not in CODES or not message:
        return LostAnswer(f"{status} with an error that is none of ours: {error}")
    return RefusedCall(f"{status} {code}: {message[:SHOWN]}")


def call_refusal(error: grpc.aio.AioRpcError) -> Exception:
    """Converts a status other than OK into an exception."""
    details = error.details() or ""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for packed in status_pb2.Status.FromString(bytes(value)).details:
                info = error_details_pb2.ErrorInfo()
                if packed.Unpack(info) and info.reason in REASONS and details:
                    return RefusedCall(f"{info.reason}: {details[:SHOWN]}")
    if error.code() is grpc.StatusCode.UNAVAILABLE and "service is not available at the moment" in details:
        return RefusedCall(details[:SHOWN])
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED):
        return CutCall(f"{error.code().name}: {details[:SHOWN]}")
    return LostAnswer(f"{error.code().name} without a reason: {details[:SHOWN]}")
