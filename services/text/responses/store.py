"""Stored responses: whose they are, how long they are kept, what continues what, and who makes those in the background.

Any replica may read, delete and cancel what another makes: cancelling is a mark in the store, which the one that makes
it looks for. There are two stores: a SQLite file for the replicas of one host, and Redis for those of many.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from services.errors import InvalidRequest, Overloaded, ResponseNotFound
from services.text.responses.event import Event
from services.text.responses.item import Item
from services.text.responses.response import Failure, Response

DAY = 86_400.0
MAX_CHAIN = 1_000  # responses that one may continue, directly and indirectly
MAX_CHAIN_BYTES = 32 * 1024 * 1024  # of all that is kept of them
MAX_BACKGROUND = 32  # responses of one client that wait or run in the background
MAX_STORED = 100_000  # responses of one client; the oldest beyond them are forgotten
MAX_STORED_BYTES = 4 * 1024 * 1024 * 1024  # the same for their size
SWEEP_BYTES = 256 * 1024 * 1024  # written here since the last sweep: then it is time for one
STALE_SECONDS = 8.0  # a replica whose heartbeat is older is gone
SWEPT_AT_ONCE = 500  # responses deleted in one go: others wait meanwhile

ORPHANED = Failure(code="INTERNAL", message="the replica that made the response is gone; ask again")


class ResponseStore(Protocol):
    """The stored responses of all clients. Every method raises what the store itself fails with, an AllmError."""

    async def close(self) -> None:
        """Gives up the file or the connections."""

    async def check(self) -> None:
        """Raises what `add` would, where the store cannot be reached: better before a response is made than after."""

    # --- what callers do

    async def add(self, client: str, response: Response, given: Sequence[Item]) -> None:
        """Keeps a response that has ended."""

    async def get(self, client: str, response_id: str) -> Response:
        """A response as it is now. Raises ResponseNotFound."""

    async def delete(self, client: str, response_id: str) -> None:
        """Forgets a response; whoever makes it finds it gone, and stops. Raises ResponseNotFound."""

    async def cancel(self, client: str, response_id: str) -> Response:
        """Marks a response in the background as cancelled; one that has ended stays as it is.

        Raises:
            ResponseNotFound: there is none.
            InvalidRequest: it is not in the background.
        """

    async def input_items(self, client: str, response_id: str) -> tuple[Item, ...]:
        """What a response was given. Raises ResponseNotFound."""

    async def item(self, client: str, item_id: str) -> Item | None:
        """An item of one of the client's stored responses, the latest that has it."""

    async def conversation(self, client: str, response_id: str) -> tuple[Item, ...]:
        """Everything that was said up to the end of a response, oldest first.

        Raises:
            ResponseNotFound: it is not there, or one that it continues is no longer there.
            InvalidRequest: it has not ended, or the conversation is too long.
        """

    # --- what is made in the background

    async def add_background(self, client: str, response: Response, given: Sequence[Item], runner: str) -> None:
        """Keeps a response that is going to be made by `runner`. Raises Overloaded."""

    async def advance(self, response: Response, told: Sequence[Event], first_event: int) -> bool:
        """Notes how far a response in the background is, and keeps its events. False: it was cancelled or deleted."""

    async def beat(self, runner: str, making: Collection[str]) -> set[str]:
        """Says that `runner` is making these responses; gives the ids of those that it should go on with."""

    async def events(self, client: str, response_id: str, after: int, limit: int) -> list[tuple[int, Event]]:
        """Kept events beyond a position, at most `limit`. Raises ResponseNotFound."""

    # --- what is forgotten

    async def sweep(self) -> int:
        """Deletes what has expired, and what a client has too many of; gives their number."""


# --- what callers are told, whichever store it is


def not_found(response_id: str) -> ResponseNotFound:
    """There is no such response, or it is another client's."""
    return ResponseNotFound(f"Response with id '{response_id[:80]}' not found.", param="response_id")


def gap(response_id: str, *, within: bool) -> ResponseNotFound:
    """A response that is to be continued is not there; `within`: one further back in the conversation."""
    how = ", which the conversation goes through, is no longer there." if within else " not found."
    return ResponseNotFound(f"Previous response with id '{response_id[:80]}'{how}", param="previous_response_id")


def unfinished(response_id: str, status: str) -> InvalidRequest:
    """A response that is to be continued still runs."""
    message = f"Previous response '{response_id}' has not ended: it is {status}."
    return InvalidRequest(message, param="previous_response_id")


def too_long() -> InvalidRequest:
    """A conversation goes through more than is read for one request."""
    message = f"The conversation is longer than {MAX_CHAIN} responses or {MAX_CHAIN_BYTES} bytes."
    return InvalidRequest(message, param="previous_response_id")


def synchronous() -> InvalidRequest:
    """What is not made in the background cannot be cancelled by its id."""
    return InvalidRequest("Cannot cancel a synchronous response.", param="response_id")


def crowded(running: int) -> Overloaded:
    """The client's places in the background are taken."""
    message = f"{running} responses wait or run in the background; {MAX_BACKGROUND} are allowed"
    return Overloaded(message, retry_after=5)
