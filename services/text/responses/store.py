"""The interface of the response stores: ownership, expiry, conversations and background responses.

Any replica may read, delete and cancel a response that another replica generates: the store marks it as cancelled, and
the generating replica polls for the mark. There are two stores: a SQLite file for the replicas of one host, and Redis
for replicas on many hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from services.auth.caller import current_caller
from services.errors import InvalidRequest, Overloaded, ResponseNotFound
from services.text.responses.conversations import MAX_BYTES, ConversationStore
from services.text.responses.response import Event, Failure, Item, Response

DAY = 86_400.0
MAX_CHAIN = 1_000  # responses that one response may continue, directly and indirectly
MAX_CHAIN_BYTES = MAX_BYTES  # of all their stored content
MAX_BACKGROUND = 32  # queued or running background responses per client
MAX_STORED = 100_000  # responses per client; the oldest beyond this are deleted
MAX_STORED_BYTES = 4 * 1024 * 1024 * 1024  # bytes per client; the oldest beyond this are deleted
SWEEP_BYTES = 256 * 1024 * 1024  # this many bytes written by this process trigger a sweep
STALE_SECONDS = 8.0  # a replica with an older heartbeat is considered gone
SWEPT_AT_ONCE = 500  # deletions per transaction, which blocks other writers

# The JSON of all stores.
encode = msgspec.json.Encoder().encode
response_of = msgspec.json.Decoder(Response).decode
failure_of = msgspec.json.Decoder(Failure).decode
item_of = msgspec.json.Decoder[Item](Item).decode
event_of = msgspec.json.Decoder[Event](Event).decode

ORPHANED = Failure(code="INTERNAL", message="the replica that generated the response is gone; try again")


class ResponseStore(Protocol):
    """The stored responses of all clients. Every method may raise an AllmError of the store itself."""

    conversations: ConversationStore

    async def close(self) -> None:
        """Closes the file or the connections."""

    async def check(self, client: str) -> None:
        """Raises an error if nothing can be stored for the client, so that no response is generated in vain.

        Raises:
            InvalidRequest: the client's responses have as many bytes as they may.
        """

    # --- client operations

    async def add(self, client: str, response: Response, given: Sequence[Item]) -> None:
        """Stores a response that has ended."""

    async def get(self, client: str, response_id: str) -> Response:
        """Returns the current state of a response. Raises ResponseNotFound."""

    async def delete(self, client: str, response_id: str) -> None:
        """Deletes a response; a replica that generates it notices and stops. Raises ResponseNotFound."""

    async def cancel(self, client: str, response_id: str) -> Response:
        """Marks a background response as cancelled; one that has ended does not change.

        Raises:
            ResponseNotFound: the response does not exist.
            InvalidRequest: it is not a background response.
        """

    async def input_items(self, client: str, response_id: str) -> tuple[Item, ...]:
        """Returns the input items of a response. Raises ResponseNotFound."""

    async def item(self, client: str, item_id: str) -> Item | None:
        """Returns an item from the client's latest stored response that has it."""

    async def conversation(self, client: str, response_id: str) -> tuple[Item, ...]:
        """Returns all items of the conversation up to the end of a response, oldest first.

        Raises:
            ResponseNotFound: the response does not exist, or one that it continues no longer exists.
            InvalidRequest: it has not ended, or the conversation is too long.
        """

    # --- background responses

    async def add_background(self, client: str, response: Response, given: Sequence[Item], runner: str) -> None:
        """Stores a queued response that `runner` will generate. Raises Overloaded."""

    async def advance(self, response: Response, events: Sequence[Event], first_event: int) -> bool:
        """Stores the progress and events of a background response. Returns False if it was cancelled or deleted."""

    async def beat(self, runner: str, making: Collection[str]) -> set[str]:
        """Renews the heartbeat of the responses that `runner` generates. Returns the ids of those to continue."""

    async def events(self, client: str, response_id: str, after: int, limit: int) -> list[tuple[int, Event]]:
        """Returns at most `limit` stored events after a position. Raises ResponseNotFound."""

    # --- cleanup

    async def sweep(self) -> int:
        """Deletes expired responses and those above a client's limits. Returns the number of deletions."""


def body_of(response: Response) -> bytes:
    """Encodes a response without its output, whose items are stored separately."""
    return encode(msgspec.structs.replace(response, output=()))


# --- errors that all stores share


def not_found(response_id: str) -> ResponseNotFound:
    """Returns the error for a response that does not exist or belongs to another client."""
    return ResponseNotFound(f"Response with id '{response_id[:80]}' not found.", param="response_id")


def gap(response_id: str, *, within: bool) -> ResponseNotFound:
    """Returns the error for a missing previous response; `within`: it is further back in the conversation."""
    how = ", which is part of the conversation, no longer exists." if within else " not found."
    return ResponseNotFound(f"Previous response with id '{response_id[:80]}'{how}", param="previous_response_id")


def unfinished(response_id: str, status: str) -> InvalidRequest:
    """Returns the error for a previous response that is still running."""
    message = f"Previous response '{response_id}' has not ended: it is {status}."
    return InvalidRequest(message, param="previous_response_id")


def too_long() -> InvalidRequest:
    """Returns the error for a conversation that exceeds the limits of one request."""
    message = f"The conversation is longer than {MAX_CHAIN} responses or {MAX_CHAIN_BYTES} bytes."
    return InvalidRequest(message, param="previous_response_id")


def synchronous() -> InvalidRequest:
    """Returns the error for cancelling a response that is not in the background."""
    return InvalidRequest("Cannot cancel a synchronous response.", param="response_id")


def allowed_bytes(most: int) -> int:
    """Returns how many bytes the current caller may store, by its key and by `most`, the limit of all keys."""
    own = current_caller().identity.stored_bytes
    return min(own, most) if own else most


def check_size(size: int, most: int) -> None:
    """Raises InvalidRequest if the current caller's stored responses have as many bytes as they may."""
    allowed = allowed_bytes(most)
    if size >= allowed:
        reason = "ALLM_STORE_BYTES" if allowed == most else "the limit of your key"
        raise InvalidRequest(
            f"Your stored responses have {size} bytes; at most {allowed} are allowed ({reason}): delete some, or send "
            "'store': false.",
            param="store",
        )


def crowded(running: int) -> Overloaded:
    """Returns the error for a client that has too many background responses."""
    message = f"{running} responses wait or run in the background; at most {MAX_BACKGROUND} are allowed"
    return Overloaded(message, retry_after=5)
