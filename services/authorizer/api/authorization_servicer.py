"""envoy.service.auth.v3.Authorization: Envoy's ext_authz around the gatekeeper."""

from __future__ import annotations

import logging
import time
from typing import Any

import grpc
from allm.envoy import external_auth_pb2 as pb
from allm.envoy import external_auth_pb2_grpc

from services.authorizer import metrics
from services.authorizer.api.check_messages import admission, read_request, refusal
from services.authorizer.gatekeeper import Gatekeeper
from services.errors import AllmError

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
