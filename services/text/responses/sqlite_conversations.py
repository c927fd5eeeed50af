"""Conversations in the SQLite file of stored responses: each is a row among the responses, with input items."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from services.storage import SharedSqliteFile
from services.text.responses import conversations
from services.text.responses.conversations import Conversation, conversation_of
from services.text.responses.response import Item
from services.text.responses.store import encode, item_of

INPUT = 0


class SqliteConversations:
    """See ConversationStore. `seconds`: how long one is kept; `clock` returns seconds since 1970."""

    def __init__(self, database: SharedSqliteFile, seconds: float, clock: Callable[[], float]) -> None:
        self._database = database
        self._seconds = seconds
        self._clock = clock

    async def add(self, client: str, conversation: Conversation, items: Sequence[Item]) -> None:
        """See ConversationStore."""
        body, now = encode(conversation), self._clock()

        def work(connection: sqlite3.Connection) -> None:
            row = (conversation.id, client, None, now, now + self._seconds, conversations.STATUS, "", 0.0)
            connection.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, len(body), body))
            self._append(connection, conversation.id, items)

        await self._database.write(work)

    async def get(self, client: str, conversation_id: str) -> Conversation:
        """See ConversationStore."""
        return await self._database.read(
            lambda connection: conversation_of(self._body(connection, client, conversation_id))
        )

    async def update(self, client: str, conversation: Conversation) -> None:
        """See ConversationStore."""
        body = encode(conversation)

        def work(connection: sqlite3.Connection) -> None:
            grown = len(body) - len(self._body(connection, client, conversation.id))
            connection.execute(
                "UPDATE responses SET body = ?, bytes = bytes + ? WHERE id = ?", (body, grown, conversation.id)
            )

        await self._database.write(work)

    async def delete(self, client: str, conversation_id: str) -> None:
        """See ConversationStore."""

        def work(connection: sqlite3.Connection) -> None:
            self._body(connection, client, conversation_id)
            connection.execute("DELETE FROM responses WHERE id = ?", (conversation_id,))

        await self._database.write(work)

    async def items(self, client: str, conversation_id: str) -> tuple[Item, ...]:
        """See ConversationStore."""

        def work(connection: sqlite3.Connection) -> tuple[Item, ...]:
            self._body(connection, client, conversation_id)
            found = connection.execute(
                "SELECT body FROM items WHERE response = ? AND side = ? ORDER BY position", (conversation_id, INPUT)
            )
            return tuple(item_of(body) for (body,) in found)

        return await self._database.read(work)

    async def extend(self, client: str, conversation_id: str, items: Sequence[Item]) -> None:
        """See ConversationStore."""

        def work(connection: sqlite3.Connection) -> None:
            self._body(connection, client, conversation_id)
            expires = self._clock() + self._seconds
            connection.execute("UPDATE responses SET expires = ? WHERE id = ?", (expires, conversation_id))
            self._append(connection, conversation_id, items)

        await self._database.write(work)

    async def remove(self, client: str, conversation_id: str, item_id: str) -> bool:
        """See ConversationStore."""

        def work(connection: sqlite3.Connection) -> bool:
            self._body(connection, client, conversation_id)
            found = connection.execute(
                "SELECT position, length(body) FROM items WHERE response = ? AND side = ? AND id = ? ORDER BY position",
                (conversation_id, INPUT, item_id),
            ).fetchone()
            if found is None:
                return False
            place = (conversation_id, INPUT, found[0])
            connection.execute("DELETE FROM items WHERE response = ? AND side = ? AND position = ?", place)
            connection.execute("UPDATE responses SET bytes = bytes - ? WHERE id = ?", (found[1], conversation_id))
            return True

        return await self._database.write(work)

    def _body(self, connection: sqlite3.Connection, client: str, conversation_id: str) -> bytes:
        found = connection.execute(
            "SELECT body FROM responses WHERE id = ? AND client = ? AND expires > ?",
            (conversation_id, client, self._clock()),
        ).fetchone()
        if found is None:
            raise conversations.not_found(conversation_id)
        body: bytes = found[0]
        return body

    def _append(self, connection: sqlite3.Connection, conversation_id: str, items: Sequence[Item]) -> None:
        bodies = list(map(encode, items))
        added = sum(map(len, bodies))
        count, last = connection.execute(
            "SELECT count(*), coalesce(max(position), -1) FROM items WHERE response = ? AND side = ?",
            (conversation_id, INPUT),
        ).fetchone()
        (size,) = connection.execute("SELECT bytes FROM responses WHERE id = ?", (conversation_id,)).fetchone()
        conversations.check_length(count + len(items), size + added)
        connection.executemany(
            "INSERT INTO items VALUES (?, ?, ?, ?, ?)",
            [
                (conversation_id, INPUT, last + 1 + at, item.id, body)
                for at, (item, body) in enumerate(zip(items, bodies, strict=True))
            ],
        )
        connection.execute("UPDATE responses SET bytes = bytes + ? WHERE id = ?", (added, conversation_id))
