-- Completes what the transcoder writes for REST callers. Native gRPC and gRPC-Web responses pass unchanged.

-- gRPC has no code for some HTTP statuses (413, 415, 422): the service sends the status in a header.
local function take_status(headers)
  local wanted = headers:get("x-http-status")
  if wanted then
    headers:remove("x-http-status")
    headers:replace(":status", wanted)
  end
  return tonumber(headers:get(":status"))
end

-- An error that the facade did not write (gRPC's own, such as UNIMPLEMENTED) has no error object: the transcoder prints
-- the bare status, {"code":12,"message":"..."}. This rewrites it to OpenAI's shape.
local function shape_error(handle, status)
  local body = handle:body(true)
  local grpc_code, message = body:getBytes(0, body:length()):match('^{"code":(%d+),"message":(".*")}$')
  if grpc_code then
    local kind = status >= 500 and "server_error" or "invalid_request_error"
    local shape = '{"error":{"message":%s,"type":"%s","param":null,"code":"grpc_%s"}}'
    local length = body:setBytes(shape:format(message, kind, grpc_code))
    handle:headers():replace("content-length", length)
  end
end

-- A request that is refused before it reaches the gRPC-Web filter gets its status in headers, without a content type.
local function is_refusal_of_grpc_web(headers)
  local kind = headers:get("x-grpc-web-type")
  if kind then
    headers:remove("x-grpc-web-type")
    headers:replace("content-type", kind)
  end
  return kind ~= nil
end

function envoy_on_response(handle)
  local headers = handle:headers()
  if is_refusal_of_grpc_web(headers) then
    return
  end
  local content_type = headers:get("content-type") or ""
  if content_type:sub(1, 16) == "application/grpc" then
    return
  end
  headers:remove("grpc-status")
  headers:remove("grpc-message")
  headers:remove("grpc-accept-encoding")
  local status = take_status(headers)
  if status >= 400 and content_type == "application/json" then
    shape_error(handle, status)
  end
end
