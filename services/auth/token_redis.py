"""Recent usage per key, in the Redis that the services and gateways of many hosts share.

One hash per key, `allm:1:used:ID` for tokens and `allm:1:asked:ID` for requests, which expires once everything has
drained. Times are Redis' own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis.asyncio import Redis

from services.auth.token_rates import Spent

CALL_SECONDS = 2.0
PREFIX = "allm:1:used:"
REQUESTS_PREFIX = "allm:1:asked:"

# ARGV: tokens per minute and tokens, for each of KEYS in turn.
EXCHANGE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local found = {}
for place, key in ipairs(KEYS) do
  local rate, more = tonumber(ARGV[2 * place - 1]) / 60, tonumber(ARGV[2 * place])
  local row = redis.call('HMGET', key, 'tokens', 'at')
  local used, at = tonumber(row[1]) or 0, tonumber(row[2]) or now
  used = math.max(0, used - math.max(0, now - at) * rate) + more
  if used > 0 then
    redis.call('HSET', key, 'tokens', string.format('%.6f', used), 'at', string.format('%.6f', now))
    redis.call('PEXPIRE', key, math.ceil(used / rate * 1000) + 1000)
  end
  found[place] = string.format('%.6f', used)
end
return found
"""


class TokenRedis:
    """A TokenLedger in Redis."""

    def __init__(self, url: str, prefix: str = PREFIX) -> None:
        """Connects at the first use. Raises ValueError or TypeError for a URL that redis-py does not know."""
        self._redis = Redis.from_url(
            url, socket_timeout=CALL_SECONDS, socket_connect_timeout=CALL_SECONDS, client_name="allm-rates"
        )
        self._prefix = prefix
        self._script = self._redis.register_script(EXCHANGE)

    async def exchange(self, spent: Sequence[Spent]) -> list[float]:
        """See TokenLedger. Raises RedisError, OSError or TimeoutError if Redis cannot be used."""
        keys = [self._prefix + each.subject for each in spent]
        values = [value for each in spent for value in (each.per_minute, f"{each.tokens:.6f}")]
        async with asyncio.timeout(CALL_SECONDS):
            found = await self._script(keys=keys, args=values)
        return [float(value) for value in found]

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.aclose()
