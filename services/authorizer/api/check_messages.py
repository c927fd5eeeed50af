"""Envoy's questions and our answers to them, as protobuf (third_party/allm/envoy/external_auth.proto).

A refusal is written in the caller's protocol here, for only here it is known what is wrong: OpenAI's error object for
REST, a status with details for gRPC, and the same in headers for gRPC-Web.
"""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

from allm.envoy import external_auth_pb2 as pb
from google.rpc import status_pb2

from services.auth.identity import HEADER
from services.authorizer.gatekeeper import Admitted, Asked
from services.errors import AllmError, Unauthenticated
from services.rpc.call import DETAILS, typed_details

CLIENT = "x-client-id"
GRPC = "application/grpc"
GRPC_WEB = "application/grpc-web"
WEB_TYPE = "x-grpc-web-type"
# What percent-encoding of a gRPC message leaves as it is.
PLAIN = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def read_request(request: pb.CheckRequest) -> Asked:
    """What Envoy tells of a request."""
    http = request.attributes.request.http
    return Asked(http.method, http.path, http.headers.get("authorization", ""))


def admission(admitted: Admitted) -> pb.CheckResponse:
    """Lets a request pass, with its caller's identity in place of whatever claims to be one."""
    ok = pb.OkHttpResponse(
        headers=[_header(CLIENT, admitted.client), _header(HEADER, admitted.identity)],
        headers_to_remove=["authorization"],
    )
    if admitted.rate:
        ok.response_headers_to_add.extend(_header(*each) for each in admitted.rate.headers().items())
    return pb.CheckResponse(status=status_pb2.Status(), ok_response=ok)


def refusal(error: AllmError, request: pb.CheckRequest) -> pb.CheckResponse:
    """Ends a request with an error."""
    sent = request.attributes.request.http.headers
    content_type = sent.get("content-type", "")
    headers = error.headers()
    code = error.grpc_status.value[0]
    if content_type.startswith(GRPC):
        details = base64.b64encode(typed_details(error, sent.get("x-request-id", ""))).decode().rstrip("=")
        headers |= {DETAILS: details, "grpc-status": str(code)}
        http_status, body = 200, error.message
        if content_type.startswith(GRPC_WEB):
            # Envoy takes this for a reply to plain HTTP: the gateway's fallback.lua makes it one of gRPC-Web.
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
