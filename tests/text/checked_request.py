"""Requests whose schemas are checked, without the process that does it in the service."""

from __future__ import annotations

from services.text import limits
from services.text.conversation import ChatRequest
from services.text.schema import checked
from services.text.schema_checker import order_of, settled


def checked_request(request: ChatRequest) -> ChatRequest:
    """Checks a request as the service does. Raises InvalidRequest."""
    limits.check(request)
    order = order_of(request)
    return settled(request, checked(order)) if order else request
