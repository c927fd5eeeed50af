"""Lua scripts for stored responses in Redis. Each script is one transaction and is idempotent.

Keys start with `allm:1:`; the 1 is the version of this layout. Names in keys carry their length, which keeps keys
unambiguous:

    response:ID          hash: client, previous, expires, status, runner, heartbeat, background, bytes, body (JSON
                         without the output), given and told (the ids of its input and output items), failure (of an
                         orphan)
    input:ID, output:ID  lists of items, JSON
    events:ID            list of events, JSON: the index is the sequence number
    of:CLIENT            sorted set of the client's responses by expiry time
    sizes:CLIENT         hash: bytes of each response; size:CLIENT is their sum
    running:CLIENT       set of the responses that run in the background
    item:CLIENT:ITEM     sorted set of the responses that contain the item, by creation time
    clients              set of all clients

Every key of a response expires by itself; sweeping a client corrects its counters. Scripts use the clock of Redis, so
the clocks of the replicas' hosts do not matter; ARGV[1] overrides it in tests and is empty otherwise.
"""

from __future__ import annotations

PRELUDE = """
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function key(kind, ...)
  local name = 'allm:1:' .. kind
  for _, part in ipairs({...}) do name = name .. ':' .. #part .. ':' .. part end
  return name
end

local function is_running(status) return status == 'queued' or status == 'in_progress' end

local function find(client, id)
  local found = redis.call('HMGET', key('response', id), 'client', 'expires', 'status', 'heartbeat')
  if found[1] ~= client or tonumber(found[2]) <= now then return nil end
  return {status = found[3], heartbeat = tonumber(found[4])}
end

-- True if the process that generates a response is gone. Just after its start, Redis has not yet had every heartbeat.
local function is_away(heartbeat, stale)
  if heartbeat >= now - stale then return false end
  if tonumber(ARGV[1]) then return true end
  local info = redis.pcall('INFO', 'server')
  local up = type(info) == 'string' and tonumber(string.match(info, 'uptime_in_seconds:(%d+)'))
  return not up or up >= stale
end

local function end_orphan(client, id, found, stale, failure)
  if is_running(found.status) and is_away(found.heartbeat, stale) then
    found.status = 'failed'
    redis.call('HSET', key('response', id), 'status', 'failed', 'failure', failure)
    redis.call('SREM', key('running', client), id)
  end
end

-- Keeps a key for at least so many milliseconds.
local function extend(name, ttl)
  if redis.call('PTTL', name) < ttl then redis.call('PEXPIRE', name, ttl) end
end

-- Writes one side's items, which are ARGV[first] to ARGV[last]; gives their bytes.
local function put(client, id, side, field, names, first, last, created, ttl)
  local list = key(side, id)
  redis.call('DEL', list)
  redis.call('HSET', key('response', id), field, names)
  local size = 0
  for at = first, last do
    redis.call('RPUSH', list, ARGV[at])
    size = size + #ARGV[at]
  end
  if size > 0 then redis.call('PEXPIRE', list, ttl) end
  for _, name in ipairs(cjson.decode(names)) do
    redis.call('ZADD', key('item', client, name), created, id)
    extend(key('item', client, name), ttl)
  end
  return size
end

local function grow(client, id, size, ttl)
  redis.call('HINCRBY', key('response', id), 'bytes', size)
  redis.call('HINCRBY', key('sizes', client), id, size)
  redis.call('INCRBY', key('size', client), size)
  extend(key('sizes', client), ttl)
  extend(key('size', client), ttl)
end

local function forget(client, id)
  local response = key('response', id)
  for _, names in ipairs(redis.call('HMGET', response, 'given', 'told')) do
    if names then
      for _, name in ipairs(cjson.decode(names)) do redis.call('ZREM', key('item', client, name), id) end
    end
  end
  redis.call('DEL', response, key('input', id), key('output', id), key('events', id))
  redis.call('ZREM', key('of', client), id)
  redis.call('SREM', key('running', client), id)
  local size = redis.call('HGET', key('sizes', client), id)
  if size then
    redis.call('HDEL', key('sizes', client), id)
    redis.call('DECRBY', key('size', client), size)
  end
end

-- A response as GET returns it: found, body, status, failure, then the output.
local function whole(id)
  local told = redis.call('HMGET', key('response', id), 'body', 'status', 'failure')
  local answer = {'found', told[1], told[2], told[3] or ''}
  for _, item in ipairs(redis.call('LRANGE', key('output', id), 0, -1)) do answer[#answer + 1] = item end
  return answer
end
"""

# client, id, previous, created, expires, status, runner, background, body, ids of input items, ids of output items,
# number of input items, limit of running responses (0: not in the background), seconds until stale, items
ADD = f"""{PRELUDE}
local client, id, previous, created, expires, status, runner, background, body, given, told = unpack(ARGV, 2, 12)
local count, most, stale = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
local ttl = math.ceil((tonumber(expires) - now) * 1000)
if ttl <= 0 then return {{'kept', 0}} end
local ended = {{}}
if most > 0 then
  local running = 0
  for _, other in ipairs(redis.call('SMEMBERS', key('running', client))) do
    local found = redis.call('HMGET', key('response', other), 'status', 'heartbeat')
    if not is_running(found[1]) then
      ended[#ended + 1] = other
    elseif other ~= id and tonumber(found[2]) >= now - stale then
      running = running + 1
    end
  end
  if running >= most then return {{'crowded', running}} end
end
if redis.call('EXISTS', key('response', id)) == 1 then forget(client, id) end
-- The first command that writes is one that a full Redis refuses: it refuses none that come after.
redis.call('HSET', key('response', id), 'client', client, 'previous', previous, 'expires', expires, 'status', status,
  'runner', runner, 'heartbeat', now, 'background', background, 'body', body, 'created', created)
redis.call('PEXPIRE', key('response', id), ttl)
if most > 0 then
  redis.call('SADD', key('running', client), id)
  extend(key('running', client), ttl)
  for _, other in ipairs(ended) do redis.call('SREM', key('running', client), other) end
end
redis.call('ZADD', key('of', client), expires, id)
extend(key('of', client), ttl)
redis.call('SADD', 'allm:1:clients', client)
local size = #body + put(client, id, 'input', 'given', given, 16, 15 + count, created, ttl)
size = size + put(client, id, 'output', 'told', told, 16 + count, #ARGV, created, ttl)
grow(client, id, size, ttl)
return {{'kept', size}}
"""

# client, id, seconds until stale, failure of an orphan
GET = f"""{PRELUDE}
local client, id = ARGV[2], ARGV[3]
local found = find(client, id)
if not found then return {{'none'}} end
end_orphan(client, id, found, tonumber(ARGV[4]), ARGV[5])
return whole(id)
"""

# client, id
DELETE = f"""{PRELUDE}
if not find(ARGV[2], ARGV[3]) then return {{'none'}} end
forget(ARGV[2], ARGV[3])
return {{'gone'}}
"""

# As GET.
CANCEL = f"""{PRELUDE}
local client, id = ARGV[2], ARGV[3]
local found = find(client, id)
if not found then return {{'none'}} end
end_orphan(client, id, found, tonumber(ARGV[4]), ARGV[5])
if redis.call('HGET', key('response', id), 'background') ~= '1' then return {{'synchronous'}} end
if is_running(found.status) then
  redis.call('HSET', key('response', id), 'status', 'cancelled')
  redis.call('SREM', key('running', client), id)
end
return whole(id)
"""

# client, id, kind of list, first index, last index
LOOK = f"""{PRELUDE}
if not find(ARGV[2], ARGV[3]) then return {{'none'}} end
local answer = {{'found'}}
for _, text in ipairs(redis.call('LRANGE', key(ARGV[4], ARGV[3]), ARGV[5], ARGV[6])) do answer[#answer + 1] = text end
return answer
"""

# client, item id
ITEM = f"""{PRELUDE}
local client, name = ARGV[2], ARGV[3]
local places = key('item', client, name)
for _, id in ipairs(redis.call('ZREVRANGE', places, 0, -1)) do
  if find(client, id) then
    for side, field in pairs({{input = 'given', output = 'told'}}) do
      for at, other in ipairs(cjson.decode(redis.call('HGET', key('response', id), field))) do
        if other == name then return {{'found', redis.call('LINDEX', key(side, id), at - 1)}} end
      end
    end
  else
    redis.call('ZREM', places, id)
  end
end
return {{'none'}}
"""

# client, maximum number of responses, maximum bytes
CONVERSATION = f"""{PRELUDE}
local client, current = ARGV[2], ARGV[3]
local chain, size = {{}}, 0
while current ~= '' do
  local found = find(client, current)
  if not found then return {{'gap', current, #chain}} end
  if is_running(found.status) then return {{'unfinished', current, found.status}} end
  chain[#chain + 1] = current
  local more = redis.call('HMGET', key('response', current), 'previous', 'bytes')
  size = size + tonumber(more[2])
  if #chain > tonumber(ARGV[4]) or size > tonumber(ARGV[5]) then return {{'long'}} end
  current = more[1]
end
local answer = {{'found'}}
for at = #chain, 1, -1 do
  for _, side in ipairs({{'input', 'output'}}) do
    for _, item in ipairs(redis.call('LRANGE', key(side, chain[at]), 0, -1)) do answer[#answer + 1] = item end
  end
end
return answer
"""

# id, status, body, ids of output items, index of the first event, number of output items, items, events
ADVANCE = f"""{PRELUDE}
local id, status, body, told = unpack(ARGV, 2, 5)
local first, count = tonumber(ARGV[6]), tonumber(ARGV[7])
local response = key('response', id)
local found = redis.call('HMGET', response, 'client', 'status', 'created')
if not is_running(found[2]) then return 0 end
local client, ttl = found[1], redis.call('PTTL', response)
if ttl <= 0 then return 0 end
redis.call('HSET', response, 'status', status, 'body', body)
if count > 0 then
  grow(client, id, put(client, id, 'output', 'told', told, 8, 7 + count, found[3], ttl), ttl)
end
local events = key('events', id)
local there = redis.call('LLEN', events)
for at = 8 + count, #ARGV do
  if first + at - 8 - count >= there then redis.call('RPUSH', events, ARGV[at]) end
end
redis.call('PEXPIRE', events, ttl)
if not is_running(status) then redis.call('SREM', key('running', client), id) end
return 1
"""

# runner, ids of the responses that it generates
BEAT = f"""{PRELUDE}
local wanted = {{}}
for at = 3, #ARGV do
  local response = key('response', ARGV[at])
  local found = redis.call('HMGET', response, 'runner', 'status')
  if found[1] == ARGV[2] and is_running(found[2]) then
    redis.call('HSET', response, 'heartbeat', now)
    wanted[#wanted + 1] = ARGV[at]
  end
end
return wanted
"""

# client, maximum number of responses, maximum bytes, maximum number of deletions
SWEEP = f"""{PRELUDE}
local client, most, most_bytes, left = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local mine, swept = key('of', client), 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', mine, '-inf', now, 'LIMIT', 0, left)) do
  forget(client, id)
  swept = swept + 1
end
while swept < left do
  local size = tonumber(redis.call('GET', key('size', client)) or 0)
  if redis.call('ZCARD', mine) <= most and size <= most_bytes then break end
  local oldest = redis.call('ZRANGE', mine, 0, 0)[1]
  if not oldest then break end
  forget(client, oldest)
  swept = swept + 1
end
if redis.call('ZCARD', mine) == 0 then redis.call('SREM', 'allm:1:clients', client) end
return swept
"""
