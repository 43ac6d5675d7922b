-- RELEASE. KEYS: entry, leases. ARGV: key, token.
local state, token = unpack(redis.call('HMGET', KEYS[1], 'state', 'token'))

if state == 'started' and token == ARGV[2] then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return false
