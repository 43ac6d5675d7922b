-- HAND OVER. KEYS: entry, leases. ARGV: key, token, begun.
local state, token, closed = unpack(redis.call('HMGET', KEYS[1], 'state', 'token', 'closed'))

if state == 'started' and token == ARGV[2] and not closed then
  if ARGV[3] == '0' then
    redis.call('HSET', KEYS[1], 'token', '')
  end
  redis.call('ZADD', KEYS[2], 0, ARGV[1])
end
return false
