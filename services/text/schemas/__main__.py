"""A process that checks JSON Schemas: `python -m services.text.schemas FD`, run by the text service.

A small schema can take seconds to compile and gigabytes of memory. This process contains such schemas: its processor
time and its memory are limited for each request.
"""

from __future__ import annotations

import json

from services.errors import InvalidRequest
from services.sandbox import child
from services.sandbox.child import Refusal
from services.text.schema import check_schema, fit, lenient
from services.text.schemas.messages import OUTPUT, Check, Checked, ToChecker
from services.worker.channel import BlockingChannel

MEMORY_BYTES = 512 * 1024 * 1024  # in addition to the libraries
CPU_SECONDS = 3.0  # for all schemas of a request together; an ordinary schema takes a few milliseconds


def main() -> None:
    """Checks schemas until the service closes the channel."""
    child.run(ToChecker, _prepare)


def checked(order: Check) -> Checked:
    """Checks all schemas of a request. Raises InvalidRequest."""
    if order.output:
        check_schema(json.loads(order.output), OUTPUT)
    strict = tuple(_strict(schema, wanted, at) for at, (schema, wanted) in enumerate(order.tools))
    if not (order.constrained or any(strict)):
        return Checked(strict, ())
    schemas = (
        json.dumps((fit if exact else lenient)(json.loads(schema))) if schema else ""
        for (schema, _), exact in zip(order.tools, strict, strict=True)
    )
    return Checked(strict, tuple(schemas))


def _strict(schema: str, wanted: bool | None, at: int) -> bool:
    if not schema or wanted is False:
        return wanted is not False
    try:
        check_schema(json.loads(schema), f"tools[{at}].parameters")
    except InvalidRequest:
        if wanted:
            raise
        return False
    return True


def _prepare(_: BlockingChannel[ToChecker]) -> child.Work:
    lenient({"type": "object", "properties": {"a": {"type": "string", "format": "date"}}})  # imports everything
    return child.Work(
        memory_bytes=MEMORY_BYTES,
        cpu_seconds=lambda _: CPU_SECONDS,
        answer=_answer,
        no_memory="the request's schemas need more memory than schemas may have",
    )


def _answer(order: Check) -> Checked:
    try:
        return checked(order)
    except InvalidRequest as error:
        raise Refusal(error.message, error.param or "") from None


if __name__ == "__main__":
    main()
