"""`allm keys`: creates, lists and revokes keys. It calls the catalog directly, so the first key needs no key."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from allm.keys.v1 import keys_pb2, keys_pb2_grpc

from services.byte_count import bytes_word
from services.cli.command import command_group
from services.cli.models.connection import key_service, readable_errors
from services.cli.models.listing import time_word
from services.cli.models.options import Json
from services.cli.models.page import Page, document, print_document
from services.cli.problem import plainly
from services.settings.settings import load_settings

HEADERS = ("ID", "NAME", "KEY", "STATE", "SCOPES", "REQUESTS/MIN", "TOKENS/MIN", "MADE", "EXPIRES", "MODELS")
NONE_YET = "no keys yet: create one with `allm keys create NAME`"
ANSWER_SECONDS = 30.0
DAY_SECONDS = 86_400
ONCE = "Save the key now: it is not shown again, and allm stores only its hash."
keys_app = command_group("Create, list and revoke the API keys that `ALLM_AUTH=keys` requires.")
CatalogAddress = Annotated[
    str,
    typer.Option(
        "--catalog",
        metavar="ADDRESS",
        help="The address of the catalog. Default: that of `allm serve` on this machine.",
    ),
]


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
    rates += [f"{key.concurrent_requests:,} requests at a time"] if key.concurrent_requests else []
    rates += [f"{bytes_word(key.bytes_in_flight)} of requests at a time"] if key.bytes_in_flight else []
    rates += [f"{bytes_word(key.stored_bytes)} of stored responses"] if key.stored_bytes else []
    return ", ".join(rates) or "no limit"


@contextmanager
def _session(catalog: str) -> Iterator[keys_pb2_grpc.KeyServiceStub]:
    """Connects to the catalog's key service; an error ends the command with a sentence."""
    with plainly(), key_service(catalog, load_settings()) as keys, readable_errors():
        yield keys


@keys_app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for the key, such as that of its user.")],
    scopes: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="SCOPE", help="`inference`, the default, or `admin`; repeatable."),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="ID", help="Allow only this model, or a prefix: `llama*`; repeatable."),
    ] = None,
    requests: Annotated[
        int, typer.Option("--requests-per-minute", min=0, metavar="N", help="Requests per minute; 0: no limit.")
    ] = 0,
    tokens: Annotated[
        int, typer.Option("--tokens-per-minute", min=0, metavar="N", help="Tokens per minute; 0: no limit.")
    ] = 0,
    concurrent: Annotated[
        int,
        typer.Option(
            "--concurrent", min=0, metavar="N", help="Requests at the same time in each replica; 0: no limit."
        ),
    ] = 0,
    in_flight: Annotated[
        int,
        typer.Option(
            "--bytes-in-flight",
            min=0,
            metavar="N",
            help="Bytes of the requests at the same time in each replica; 0: no limit.",
        ),
    ] = 0,
    stored: Annotated[
        int,
        typer.Option("--stored-bytes", min=0, metavar="N", help="Bytes of stored responses; 0: the server's limit."),
    ] = 0,
    days: Annotated[
        float,
        typer.Option("--expires", min=0, max=36_500, metavar="DAYS", help="Days until the key expires; 0: never."),
    ] = 0,
    as_json: Json = False,
    catalog: CatalogAddress = "",
) -> None:
    """Create a key and show it. It is never shown again."""
    request = keys_pb2.CreateKeyRequest(name=name, scopes=scopes, models=models, tokens_per_minute=tokens)
    request.requests_per_minute = min(requests, 2**31 - 1)
    request.concurrent_requests = min(concurrent, 2**31 - 1)
    request.bytes_in_flight = min(in_flight, 2**63 - 1)
    request.stored_bytes = min(stored, 2**63 - 1)
    if days:
        request.expire_time.seconds = int(time.time() + days * DAY_SECONDS)
    with _session(catalog) as keys:
        reply = keys.CreateKey(request, timeout=ANSWER_SECONDS)
        if as_json:
            print_document(document(reply))
        else:
            show_new_key(Page(), reply)
            Page(error=True).say(ONCE)


@keys_app.command(name="list")
def list_keys(as_json: Json = False, catalog: CatalogAddress = "") -> None:
    """List all keys, without their secrets."""
    with _session(catalog) as keys:
        reply = keys.ListKeys(keys_pb2.ListKeysRequest(), timeout=ANSWER_SECONDS)
        if as_json:
            print_document(document(reply))
        else:
            show_keys(Page(), reply.keys)


@keys_app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the key, `key_...`, from `allm keys list`.")],
    as_json: Json = False,
    catalog: CatalogAddress = "",
) -> None:
    """Revoke a key for good. Within five seconds new calls with it are refused."""
    with _session(catalog) as keys:
        reply = keys.RevokeKey(keys_pb2.RevokeKeyRequest(id=key_id), timeout=ANSWER_SECONDS)
        if as_json:
            print_document(document(reply))
        else:
            Page().say(f"{reply.key.id} ({reply.key.name}) is revoked")
