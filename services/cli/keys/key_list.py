"""Tables of API keys for people."""

from __future__ import annotations

import time
from collections.abc import Sequence

from allm.keys.v1 import keys_pb2

from services.cli.models.listing import time_word
from services.cli.models.page import Page

HEADERS = ("ID", "NAME", "KEY", "STATE", "SCOPES", "REQUESTS/MIN", "TOKENS/MIN", "MADE", "EXPIRES", "MODELS")
NONE_YET = "no keys yet: make one with `allm keys create NAME`"


def show_keys(page: Page, keys: Sequence[keys_pb2.ApiKey], now: float | None = None) -> None:
    """Shows all keys, one per line. `now`: seconds since the epoch; None: the current time."""
    if not keys:
        page.say(NONE_YET)
        return
    moment = time.time() if now is None else now
    page.table(HEADERS, [_row(key, moment) for key in keys], right=frozenset({"REQUESTS/MIN", "TOKENS/MIN"}))


def show_new_key(page: Page, reply: keys_pb2.CreateKeyResponse) -> None:
    """Shows a newly created key."""
    key = reply.key
    page.pairs(
        [
            ("key", reply.secret),
            ("id", key.id),
            ("name", key.name),
            ("scopes", ", ".join(key.scopes)),
            ("models", ", ".join(key.models) or "all"),
            ("rates", _rates(key)),
            ("expires", time_word(key.expire_time) or "never"),
        ]
    )


def _row(key: keys_pb2.ApiKey, now: float) -> tuple[str, ...]:
    return (
        key.id,
        key.name,
        key.hint,
        state_word(key, now),
        ", ".join(key.scopes),
        str(key.requests_per_minute or "-"),
        str(key.tokens_per_minute or "-"),
        time_word(key.create_time),
        time_word(key.expire_time) or "-",
        ", ".join(key.models) or "all",
    )


def state_word(key: keys_pb2.ApiKey, now: float) -> str:
    """Returns `active`, `expired` or `revoked`."""
    if key.HasField("revoke_time"):
        return "revoked"
    return "expired" if key.HasField("expire_time") and key.expire_time.seconds <= now else "active"


def _rates(key: keys_pb2.ApiKey) -> str:
    rates = [f"{key.requests_per_minute:,} requests a minute"] if key.requests_per_minute else []
    rates += [f"{key.tokens_per_minute:,} tokens a minute"] if key.tokens_per_minute else []
    return ", ".join(rates) or "no limit"
