"""The migrations from an empty database to the current schema. A released one never changes: only new ones follow."""

from __future__ import annotations

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE models (
        serial INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given again: tells a model from an earlier one of its id
        id TEXT NOT NULL UNIQUE,
        source TEXT NOT NULL,                      -- as registered
        generation INTEGER NOT NULL CHECK (generation > 0),
        facts TEXT NOT NULL,                       -- JSON, see registration.py; so are the next two
        manifest TEXT NOT NULL,
        artifacts TEXT NOT NULL,
        fingerprint TEXT NOT NULL,                 -- of local files, to see that they were changed; empty for the hub
        keep_loaded INTEGER NOT NULL CHECK (keep_loaded IN (0, 1)),
        runtime TEXT NOT NULL,                     -- asked for by an operator, or empty
        unloads INTEGER NOT NULL CHECK (unloads >= 0),
        created INTEGER NOT NULL,                  -- seconds since the epoch; so is the next
        updated INTEGER NOT NULL
    ) STRICT;

    -- Ids and aliases in one table, so that the database itself refuses a name that is taken, whatever it is taken as.
    CREATE TABLE names (
        name TEXT NOT NULL PRIMARY KEY,
        model INTEGER NOT NULL REFERENCES models (serial) ON DELETE CASCADE,
        place INTEGER NOT NULL CHECK (place >= 0), -- 0: the id; aliases in their order
        UNIQUE (model, place)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE benchmarks (
        model INTEGER NOT NULL REFERENCES models (serial) ON DELETE CASCADE,
        runtime TEXT NOT NULL,
        device TEXT NOT NULL,
        tokens_per_second REAL NOT NULL,
        first_token_seconds REAL NOT NULL,
        peak_memory INTEGER NOT NULL,              -- bytes; 0: not known
        recorded INTEGER NOT NULL,                 -- seconds since the epoch
        PRIMARY KEY (model, runtime, device)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE models ADD COLUMN parts TEXT NOT NULL DEFAULT '[]'; -- JSON, see registration.py; so is the next
    ALTER TABLE models ADD COLUMN image_defaults TEXT NOT NULL DEFAULT '{}';
    """,
    """
    ALTER TABLE models ADD COLUMN declared TEXT NOT NULL DEFAULT ''; -- the entry of the models file, see models_file.py
    """,
    """
    CREATE TABLE api_keys (
        id TEXT NOT NULL PRIMARY KEY,
        hash BLOB NOT NULL UNIQUE CHECK (length(hash) = 32), -- SHA-256; the key itself is nowhere
        hint TEXT NOT NULL,                        -- its first characters
        name TEXT NOT NULL,
        scopes TEXT NOT NULL,                      -- JSON, a list of names; so is the next
        models TEXT NOT NULL,
        requests_per_minute INTEGER NOT NULL CHECK (requests_per_minute >= 0),
        tokens_per_minute INTEGER NOT NULL CHECK (tokens_per_minute >= 0),
        created INTEGER NOT NULL,                  -- seconds since the epoch; so are the next two
        expires INTEGER NOT NULL,                  -- 0: never
        revoked INTEGER NOT NULL                   -- 0: it was not
    ) STRICT;
    """,
    # Stores the registration's runtime next to the last one asked for: so far only the models file could set it.
    """
    ALTER TABLE models ADD COLUMN registered_runtime TEXT NOT NULL DEFAULT ''; -- asked for at registration, or empty
    ALTER TABLE models ADD COLUMN engine TEXT NOT NULL DEFAULT '{}'; -- JSON, see registration.py
    UPDATE models SET registered_runtime = coalesce(json_extract(declared, '$.runtime'), '') WHERE json_valid(declared);
    """,
    """
    ALTER TABLE api_keys ADD COLUMN concurrent_requests INTEGER NOT NULL DEFAULT 0; -- 0: no limit
    """,
    """
    ALTER TABLE api_keys ADD COLUMN bytes_in_flight INTEGER NOT NULL DEFAULT 0; -- 0: no limit; so is the next
    ALTER TABLE api_keys ADD COLUMN stored_bytes INTEGER NOT NULL DEFAULT 0;
    """,
)
