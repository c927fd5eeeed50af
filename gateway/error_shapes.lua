-- Gives Anthropic's and Ollama's clients errors in their shape, and Anthropic's the header `request-id` on all answers.
-- The services, the authorizer and Envoy itself write errors in OpenAI's shape; they are rewritten here, in one place.
-- A request is Anthropic's by its path, or by the header `anthropic-version` (/v1/models has both shapes); it is
-- Ollama's by its path.

local SPACE = "allm.client"
local TYPES = {
  [401] = "authentication_error",
  [403] = "permission_error",
  [404] = "not_found_error",
  [408] = "timeout_error",
  [413] = "request_too_large",
  [429] = "rate_limit_error",
  [504] = "timeout_error",
  [529] = "overloaded_error",
}

-- Anthropic's SDKs that get this send the whole conversation instead.
local NO_THREADS = ',"details":{"error_code":"thread_unsupported_request"}'

local function is_below(path, parent)
  return path == parent or path:sub(1, #parent + 1) == parent .. "/"
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local path = (headers:get(":path") or ""):match("^[^?]*")
  local client = nil
  if headers:get("anthropic-version") or is_below(path, "/v1/messages") then
    client = "anthropic"
  elseif is_below(path, "/api") then
    client = "ollama"
  end
  if client then
    local metadata = handle:streamInfo():dynamicMetadata()
    metadata:set(SPACE, "client", client)
    metadata:set(SPACE, "request_id", headers:get("x-request-id")) -- Envoy's own
  end
end

-- Returns the first string with this name in a JSON text, as it is written there, without its quotes.
local function string_of(json, name)
  local _, start = json:find('"' .. name .. '":%s*"')
  local at = start
  while at do
    at = json:find('["\\]', at + 1)
    if not at or json:sub(at, at) == '"' then
      return at and json:sub(start + 1, at - 1)
    end
    at = at + 1 -- an escaped character
  end
end

-- Anthropic's status for "try again later" is 529. Waiting does not help where `x-should-retry` is false.
local function anthropics(headers, status, code, message, request, param)
  local later = status == 503 or code == "overloaded"
  if later and headers:get("x-should-retry") ~= "false" then
    status = 529
  end
  local kind = TYPES[status] or (status >= 500 and "api_error" or "invalid_request_error")
  local details = param == "thread" and NO_THREADS or ""
  local shape = '{"type":"error","error":{"type":"%s","message":"%s"%s},"request_id":"%s"}'
  return status, shape:format(kind, message, details, request.request_id)
end

-- Ollama answers 503 if its queue is full, and 400 if a model cannot do what is asked.
local function ollamas(_, status, code, message)
  if code == "overloaded" then
    status = 503
  elseif code == "unsupported" then
    status = 400
  end
  return status, ('{"error":"%s"}'):format(message)
end

local SHAPES = { anthropic = anthropics, ollama = ollamas }

function envoy_on_response(handle)
  local request = handle:streamInfo():dynamicMetadata():get(SPACE)
  if not request then
    return
  end
  local headers = handle:headers()
  if request.client == "anthropic" then
    headers:replace("request-id", request.request_id)
  end
  local status = tonumber(headers:get(":status"))
  if status < 400 or headers:get("content-type") ~= "application/json" then
    return
  end
  local body = handle:body(true) -- nil: there is none
  headers = handle:headers() -- the ones before the body are out of scope
  local json = body and body:getBytes(0, body:length()) or ""
  local message = string_of(json, "message")
  if message then
    local code, param = string_of(json, "code"), string_of(json, "param")
    local shown, text = SHAPES[request.client](headers, status, code, message, request, param)
    headers:replace(":status", tostring(shown))
    headers:replace("content-length", tostring(body:setBytes(text)))
  end
end
