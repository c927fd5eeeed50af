-- Limits request bodies that are still arriving, which Envoy buffers: the time of each, and the bytes of all together.
-- gateway/render.py prepends SECONDS and BYTES, the limits of one worker thread.
--
-- The routes match the state of a body. Until it is `whole`, its route has a short idle timeout. The states `late` and
-- `excess` lead to a route that ends the request at once: a script cannot answer after the headers have passed it.

local held, bodies = 0, 0 -- bytes and number of the unfinished bodies of this thread

local function forget(account)
  if account.open then
    account.open = false
    held, bodies = held - account.bytes, bodies - 1
  end
end

-- Envoy calls no script when a client disconnects. The account then becomes garbage, and the collector calls `__gc`.
local function open_account()
  local account = { bytes = 0, open = true, guard = newproxy(true) }
  getmetatable(account.guard).__gc = function() forget(account) end
  bodies = bodies + 1
  return account
end

-- Returns true if all bodies together are too large and this one has at least the average size: small ones always pass.
local function is_excess(account)
  if held <= BYTES or account.bytes * bodies < held then
    return false
  end
  collectgarbage() -- the accounts of clients that have disconnected
  return held > BYTES and account.bytes * bodies >= held
end

local function turn(handle, state)
  handle:streamInfo():dynamicMetadata():set("allm.body", "state", state)
  handle:clearRouteCache()
  handle:metadata() -- looks the route up, so that its timeouts apply from now on
end

function envoy_on_request(handle)
  local state, account, deadline = "whole", nil, os.time() + SECONDS
  for chunk in handle:bodyChunks() do
    account = account or open_account()
    account.bytes, held = account.bytes + chunk:length(), held + chunk:length()
    if os.time() > deadline then
      state = "late"
      break
    end
    if is_excess(account) then
      state = "excess"
      break
    end
  end
  if account then
    forget(account)
  end
  turn(handle, state)
end
