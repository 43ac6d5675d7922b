-- CLOSE. KEYS: entry, leases. ARGV: call, ms to keep a closed entry.
local state, closed = unpack(redis.call('HMGET', KEYS[1], 'state', 'closed'))

if state == 'started' and not closed then
  redis.call('HSET', KEYS[1], 'closed', 1)
  redis.call('HDEL', KEYS[1], 'request')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return false
