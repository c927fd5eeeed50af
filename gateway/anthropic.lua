-- Gives Anthropic's clients what they expect around an answer: the header `request-id`, and errors in Anthropic's shape.
-- The services, the authorizer and Envoy itself write errors in OpenAI's shape; they are rewritten here, in one place.
-- A request is Anthropic's by its path, or by the header `anthropic-version` (/v1/models has both shapes).

local SPACE = "allm.anthropic"
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
local SHAPE = '{"type":"error","error":{"type":"%s","message":"%s"},"request_id":"%s"}'

function envoy_on_request(handle)
  local headers = handle:headers()
  local path = (headers:get(":path") or ""):match("^[^?]*")
  if headers:get("anthropic-version") or path == "/v1/messages" or path:sub(1, 13) == "/v1/messages/" then
    handle:streamInfo():dynamicMetadata():set(SPACE, "request_id", headers:get("x-request-id")) -- Envoy's own
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
local function status_of(headers, code)
  local status = tonumber(headers:get(":status"))
  local later = status == 503 or code == "overloaded"
  return later and headers:get("x-should-retry") ~= "false" and 529 or status
end

function envoy_on_response(handle)
  local request = handle:streamInfo():dynamicMetadata():get(SPACE)
  if not request then
    return
  end
  local headers = handle:headers()
  headers:replace("request-id", request.request_id)
  if tonumber(headers:get(":status")) < 400 or headers:get("content-type") ~= "application/json" then
    return
  end
  local body = handle:body(true) -- nil: there is none
  headers = handle:headers() -- the ones before the body are out of scope
  local json = body and body:getBytes(0, body:length()) or ""
  local message = string_of(json, "message")
  if message then
    local status = status_of(headers, string_of(json, "code"))
    local kind = TYPES[status] or (status >= 500 and "api_error" or "invalid_request_error")
    local length = body:setBytes(SHAPE:format(kind, message, request.request_id))
    headers:replace(":status", tostring(status))
    headers:replace("content-length", tostring(length))
  end
end
