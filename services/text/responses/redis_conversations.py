"""Conversations in Redis: a conversation is a record among the responses (redis_scripts.py), with input items.

Its fields are those of a response; `status` is `conversation`, and its items are `input:ID`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from services.text.limits import MAX_MESSAGES
from services.text.responses import conversations
from services.text.responses.conversations import Conversation, conversation_of
from services.text.responses.redis_scripts import PRELUDE
from services.text.responses.response import Item
from services.text.responses.store import MAX_CHAIN_BYTES, STALE_SECONDS, encode, item_of

# client, id
GET = f"""{PRELUDE}
if not find(ARGV[2], ARGV[3]) then return {{'none'}} end
return {{'found', redis.call('HGET', key('response', ARGV[3]), 'body')}}
"""

# client, id, body
UPDATE = f"""{PRELUDE}
local client, id, body = unpack(ARGV, 2, 4)
if not find(client, id) then return {{'none'}} end
local response = key('response', id)
local grown = #body - #redis.call('HGET', response, 'body')
redis.call('HSET', response, 'body', body)
grow(client, id, grown, redis.call('PTTL', response))
return {{'found'}}
"""

# client, id, seconds to keep it, ids of the items, most items, most bytes, items
EXTEND = f"""{PRELUDE}
local client, id, seconds, added = unpack(ARGV, 2, 5)
if not find(client, id) then return {{'none'}} end
local response, list = key('response', id), key('input', id)
local told = redis.call('HMGET', response, 'given', 'bytes', 'created')
local names, size = cjson.decode(told[1]), 0
for at = 8, #ARGV do size = size + #ARGV[at] end
if #names + #ARGV - 7 > tonumber(ARGV[6]) or told[2] + size > tonumber(ARGV[7]) then return {{'long'}} end
local ttl = math.ceil(tonumber(seconds) * 1000)
redis.call('HSET', response, 'expires', string.format('%.6f', now + tonumber(seconds)))
redis.call('PEXPIRE', response, ttl)
redis.call('ZADD', key('of', client), now + tonumber(seconds), id)
extend(key('of', client), ttl)
for at = 8, #ARGV do redis.call('RPUSH', list, ARGV[at]) end
redis.call('PEXPIRE', list, ttl)
for _, name in ipairs(cjson.decode(added)) do names[#names + 1] = name end
if #names > 0 then redis.call('HSET', response, 'given', cjson.encode(names)) end
for _, name in ipairs(names) do
  redis.call('ZADD', key('item', client, name), told[3], id)
  extend(key('item', client, name), ttl)
end
grow(client, id, size, ttl)
return {{'found'}}
"""

# client, id, item id
REMOVE = f"""{PRELUDE}
local client, id, item = unpack(ARGV, 2, 4)
if not find(client, id) then return {{'none'}} end
local response, list = key('response', id), key('input', id)
local names, place, left = cjson.decode(redis.call('HGET', response, 'given')), nil, 0
for at, name in ipairs(names) do
  if name == item then
    place = place or at
    left = left + 1
  end
end
if not place then return {{'absent'}} end
local size = #redis.call('LINDEX', list, place - 1)
redis.call('LSET', list, place - 1, '')
redis.call('LREM', list, 1, '')
table.remove(names, place)
redis.call('HSET', response, 'given', #names > 0 and cjson.encode(names) or '[]')
if left == 1 then redis.call('ZREM', key('item', client, item), id) end
grow(client, id, -size, redis.call('PTTL', response))
return {{'found'}}
"""


class RedisConversations:
    """See ConversationStore. `run` runs a script of the store with its arguments; `scripts` are those of the store."""

    def __init__(
        self,
        register: Callable[[str], Any],
        run: Callable[..., Awaitable[Any]],
        seconds: float,
        clock: Callable[[], float] | None,
        *,
        add: Any,
        delete: Any,
        look: Any,
    ) -> None:
        self._run = run
        self._seconds = seconds
        self._clock = clock or time.time
        self._add, self._delete, self._look = add, delete, look
        self._get, self._update, self._extend, self._remove = map(register, (GET, UPDATE, EXTEND, REMOVE))

    async def add(self, client: str, conversation: Conversation, items: Sequence[Item]) -> None:
        """See ConversationStore."""
        bodies = list(map(encode, items))
        conversations.check_length(len(bodies), sum(map(len, bodies)))
        now = self._clock()
        facts = (conversation.id, "", repr(now), repr(now + self._seconds), conversations.STATUS, "", 0)
        sides = (encode(conversation), _ids(items), _ids(()), len(items))
        await self._run(self._add, client, *facts, *sides, 0, STALE_SECONDS, *bodies)

    async def get(self, client: str, conversation_id: str) -> Conversation:
        """See ConversationStore."""
        return conversation_of((await self._found(self._get, client, conversation_id))[0])

    async def update(self, client: str, conversation: Conversation) -> None:
        """See ConversationStore."""
        await self._found(self._update, client, conversation.id, encode(conversation))

    async def delete(self, client: str, conversation_id: str) -> None:
        """See ConversationStore."""
        await self._found(self._delete, client, conversation_id)

    async def items(self, client: str, conversation_id: str) -> tuple[Item, ...]:
        """See ConversationStore."""
        return tuple(map(item_of, await self._found(self._look, client, conversation_id, "input", 0, -1)))

    async def extend(self, client: str, conversation_id: str, items: Sequence[Item]) -> None:
        """See ConversationStore."""
        limits = (repr(self._seconds), _ids(items), MAX_MESSAGES, MAX_CHAIN_BYTES)
        await self._found(self._extend, client, conversation_id, *limits, *map(encode, items))

    async def remove(self, client: str, conversation_id: str, item_id: str) -> bool:
        """See ConversationStore."""
        outcome = await self._run(self._remove, client, conversation_id, item_id)
        if outcome[0] == b"none":
            raise conversations.not_found(conversation_id)
        return bool(outcome[0] == b"found")

    async def _found(self, script: Any, client: str, conversation_id: str, *values: str | bytes | float) -> list[bytes]:
        outcome, *found = await self._run(script, client, conversation_id, *values)
        if outcome == b"none":
            raise conversations.not_found(conversation_id)
        if outcome == b"long":
            conversations.check_length(MAX_MESSAGES + 1, 0)
        return list(found)


def _ids(items: Sequence[Item]) -> bytes:
    return encode([item.id for item in items])
