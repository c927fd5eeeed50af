"""The authorizer: `python -m services.authorizer`."""

from __future__ import annotations

import asyncio

import grpc
from allm.envoy import external_auth_pb2, external_auth_pb2_grpc

from services.auth.identity_keys import AUTHORIZER, read_key
from services.auth.token_ledger import REQUESTS_PREFIX, TokenRedis
from services.auth.token_rates import REQUESTS, TokenLedger, TokenRates
from services.authorizer.gatekeeper import Gatekeeper
from services.authorizer.key_follower import OPTIONS, KeyFollower
from services.authorizer.key_table import KeySnapshot, KeyTable
from services.authorizer.servicer import AuthorizationServicer
from services.rpc.channel import OwnIdentity
from services.rpc.server import Application, run
from services.settings.setting import SettingError
from services.settings.settings import Settings

SNAPSHOT = "authorizer-keys.json"  # in ALLM_HOME


async def build(server: grpc.aio.Server, settings: Settings) -> Application:
    """Builds the service: the key table, the follower that fills it, and the servicer that reads it."""
    if not settings.auth.keys:
        raise SettingError("ALLM_AUTH", settings.auth.mode, "'keys': without keys the gateway asks no authorizer")
    key = read_key(settings.auth.key_file_of(AUTHORIZER))
    table = KeyTable()
    snapshot = KeySnapshot(settings.home / SNAPSHOT, table)
    rates = request_rates(settings.store.redis_url)
    servicer = AuthorizationServicer(Gatekeeper(table, key, rates))
    external_auth_pb2_grpc.add_AuthorizationServicer_to_server(servicer, server)
    own = OwnIdentity(key, AUTHORIZER, settings.model.replica, tls=settings.tls.service)
    channel = own.channel(settings.model.catalog, OPTIONS)
    follower = KeyFollower(channel, table)
    if snapshot.load():
        follower.synced.set()  # the keys of the last run suffice
    tasks = [asyncio.create_task(follower.follow()), asyncio.create_task(snapshot.keep())]

    async def close() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await snapshot.flush()
        await rates.close()
        await channel.close()

    name = external_auth_pb2.DESCRIPTOR.services_by_name["Authorization"].full_name
    return Application([name], close, ready=follower.synced.wait)


def request_rates(redis_url: str) -> TokenRates:
    """Returns the counts of requests, shared with other gateways if there is a Redis."""
    if not redis_url:
        return TokenRates(counted=REQUESTS)

    async def ledger() -> TokenLedger:
        return TokenRedis(redis_url, REQUESTS_PREFIX)

    return TokenRates(ledger, counted=REQUESTS)


if __name__ == "__main__":
    run(build, "authorizer")
