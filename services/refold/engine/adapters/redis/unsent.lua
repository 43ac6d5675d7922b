-- UNSENT. KEYS: outbox. ARGV: most fields, most bytes.
-- A random choice, so that what is published but not yet acknowledged cannot keep the rest waiting.
local found, left = {}, tonumber(ARGV[2])

for _, field in ipairs(redis.call('HRANDFIELD', KEYS[1], ARGV[1])) do
  if left <= 0 then
    break
  end
  local result = redis.call('HGET', KEYS[1], field)
  found[#found + 1] = field
  found[#found + 1] = result
  left = left - #result
end
return found
