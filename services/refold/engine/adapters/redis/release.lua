-- RELEASE. KEYS: entry, leases. ARGV: key, token.
local state, token, takeover, closed = unpack(redis.call('HMGET', KEYS[1], 'state', 'token', 'takeover', 'closed'))

if state == 'started' and token == ARGV[2] then
  if takeover and takeover ~= '' and not closed then
    redis.call('HSET', KEYS[1], 'token', '') -- who comes next takes over the claim that this one had taken over
  else
    redis.call('DEL', KEYS[1])
  end
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return false
