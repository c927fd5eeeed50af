"""The SQLite file of stored responses. The text replicas of one host share it; every write is a transaction.

The tables are defined in rows.py.
"""

from __future__ import annotations

from pathlib import Path

from services.storage.shared_sqlite import SharedSqliteFile


class Database(SharedSqliteFile):
    """An open database. The caller must close it."""

    application_id = 0x616C7273  # `alrs`
    noun = "store of responses"
    remedy = "move it away, set another ALLM_HOME, or keep no responses (ALLM_STORE=off)"
    pragmas = ("foreign_keys = ON", "secure_delete = ON")  # deleted content is overwritten

    @classmethod
    async def open(cls, path: Path, schema: str, version: int) -> Database:
        """Opens the file, or creates it from `schema`.

        Raises:
            DatabaseUnusable: the file is damaged, is not such a database, or an incompatible allm version wrote it.
        """
        database = cls(path, "responses-database", schema, version)
        await database._opened()
        return database
