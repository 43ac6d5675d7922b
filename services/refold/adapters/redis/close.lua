-- CLOSE. KEYS: leases, entries. ARGV: ms to keep a closed entry, then key and call of each entry.
for i = 2, #KEYS do
  local key, call = ARGV[2 * i - 2], ARGV[2 * i - 1]
  local on_record, closed = unpack(redis.call('HMGET', KEYS[i], 'call', 'closed'))
  if on_record == call and not closed then
    redis.call('HSET', KEYS[i], 'closed', 1)
    redis.call('HDEL', KEYS[i], 'request', 'takeover', 'success', 'result')
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
    redis.call('ZREM', KEYS[1], key)
  end
end
return false
