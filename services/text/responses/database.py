"""The SQLite file of stored responses: shared by the text replicas of one host, and written in whole transactions.

It knows no tables.
"""

from __future__ import annotations

from pathlib import Path

from services.storage.shared_sqlite import SharedSqliteFile


class Database(SharedSqliteFile):
    """An open database. Close it."""

    application_id = 0x616C7273  # `alrs`
    noun = "store of responses"
    remedy = "move it away, set another ALLM_HOME, or keep no responses (ALLM_STORE=off)"
    pragmas = ("foreign_keys = ON", "secure_delete = ON")  # what a caller deletes is overwritten

    @classmethod
    async def open(cls, path: Path, schema: str, version: int) -> Database:
        """Opens the file, or makes it from `schema`.

        Raises:
            DatabaseUnusable: it is damaged, it is something else, or an allm of another version wrote it.
        """
        database = cls(path, "responses-database", schema, version)
        await database._opened()
        return database
