-- Masks error messages in Envoy's spans before they are sent to the collector. The attribute `grpc.message` may quote
-- the request, and Envoy cannot disable it. Its text is overwritten in place, so that no length changes. A span's
-- attribute is a KeyValue: field 1 is its key, field 2 an AnyValue, whose field 1 is a text.
local KEY = "\10\12grpc.message\18"

-- Reads a protobuf varint. Returns its value and the position after it.
local function varint(bytes, at)
  local value, scale = 0, 1
  while true do
    local byte = string.byte(bytes, at)
    if not byte then return nil end
    value = value + (byte % 128) * scale
    if byte < 128 then return value, at + 1 end
    scale, at = scale * 128, at + 1
  end
end

function envoy_on_request(handle)
  local body = handle:body()
  if not body or body:length() == 0 then return end
  local bytes = body:getBytes(0, body:length())
  local parts, copied, at = {}, 1, 1
  while true do
    local found, last = string.find(bytes, KEY, at, true)
    if not found then break end
    at = last + 1
    local _, start = varint(bytes, at)
    if start and string.byte(bytes, start) == 10 then
      local length, text = varint(bytes, start + 1)
      if length and length > 0 and text + length - 1 <= #bytes then
        parts[#parts + 1] = string.sub(bytes, copied, text - 1)
        parts[#parts + 1] = string.rep("-", length)
        copied, at = text + length, text + length
      end
    end
  end
  if #parts == 0 then return end
  parts[#parts + 1] = string.sub(bytes, copied)
  body:setBytes(table.concat(parts))
end
