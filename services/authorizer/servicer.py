"""envoy.service.auth.v3.Authorization: Envoy's ext_authz around the gatekeeper.

The messages are those of third_party/allm/envoy/external_auth.proto. A refusal is written here in the caller's
protocol, because only the authorizer knows the error: OpenAI's error object for REST, a status with details for gRPC,
and the same in headers for gRPC-Web.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from typing import Any
from urllib.parse import quote

import grpc
from allm.envoy import external_auth_pb2 as pb
from allm.envoy import external_auth_pb2_grpc
from google.rpc import status_pb2

from services.auth.identity import HEADER
from services.authorizer import metrics
from services.authorizer.gatekeeper import Admitted, CheckedRequest, Gatekeeper
from services.errors import AllmError, Unauthenticated
from services.rpc.call import DETAILS, typed_details

log = logging.getLogger(__name__)
ADMITTED = "admitted"


class AuthorizationServicer(external_auth_pb2_grpc.AuthorizationServicer):
    """Answers Envoy for every request to the gateway. Envoy answers 503 if it raises: no request is admitted."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper

    async def Check(  # noqa: N802
        self, request: pb.CheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CheckResponse:
        """Decides whether a request is admitted. Envoy's access log has each request, so none is logged here."""
        started = time.perf_counter()
        try:
            response, outcome = admission(await self._gatekeeper.check(read_request(request))), ADMITTED
        except AllmError as error:
            response, outcome = refusal(error, request), error.code
            log.debug("refused", extra={"code": error.code, "reason": error.message})
        metrics.CHECKS.labels(outcome).inc()
        metrics.CHECK_SECONDS.observe(time.perf_counter() - started)
        return response


CLIENT = "x-client-id"
ANTHROPICS = "x-api-key"  # the header in which Anthropic's clients send a key; `authorization` comes first
GRPC = "application/grpc"
GRPC_WEB = "application/grpc-web"
WEB_TYPE = "x-grpc-web-type"
# The characters that percent-encoding of a gRPC message keeps.
PLAIN = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def read_request(request: pb.CheckRequest) -> CheckedRequest:
    """Reads Envoy's description of a request."""
    http = request.attributes.request.http
    shown = http.headers.get("authorization", "")
    if not shown and (key := http.headers.get(ANTHROPICS)):
        shown = f"Bearer {key}"
    return CheckedRequest(http.method, http.path, shown)


def admission(admitted: Admitted) -> pb.CheckResponse:
    """Returns an answer that admits a request and sets its caller's identity, replacing any that the request claims."""
    ok = pb.OkHttpResponse(
        headers=[_header(CLIENT, admitted.client), _header(HEADER, admitted.identity)],
        headers_to_remove=["authorization", ANTHROPICS],
    )
    if admitted.rate:
        ok.response_headers_to_add.extend(_header(*each) for each in admitted.rate.headers().items())
    return pb.CheckResponse(status=status_pb2.Status(), ok_response=ok)


def refusal(error: AllmError, request: pb.CheckRequest) -> pb.CheckResponse:
    """Returns an answer that rejects a request with an error."""
    sent = request.attributes.request.http.headers
    content_type = sent.get("content-type", "")
    headers = error.headers()
    code = error.grpc_status.value[0]
    if content_type.startswith(GRPC):
        details = base64.b64encode(typed_details(error, sent.get("x-request-id", ""))).decode().rstrip("=")
        headers |= {DETAILS: details, "grpc-status": str(code)}
        http_status, body = 200, error.message
        if content_type.startswith(GRPC_WEB):
            # Envoy treats this as a reply to plain HTTP: the gateway's fallback.lua turns it into gRPC-Web.
            headers |= {"grpc-message": quote(error.message, safe=PLAIN), WEB_TYPE: content_type}
            body = ""
    else:
        http_status, body = error.http_status, json.dumps({"error": error.openai_object()})
        headers["content-type"] = "application/json"
        if isinstance(error, Unauthenticated):
            headers["www-authenticate"] = "Bearer"
    return pb.CheckResponse(
        status=status_pb2.Status(code=code),
        denied_response=pb.DeniedHttpResponse(
            status=pb.HttpStatus(code=http_status),
            headers=[_header(*each) for each in headers.items()],
            body=body,
        ),
    )


def _header(name: str, value: str) -> pb.HeaderValueOption:
    option = pb.HeaderValueOption(header=pb.HeaderValue(key=name, value=value))
    option.append.value = False
    return option
