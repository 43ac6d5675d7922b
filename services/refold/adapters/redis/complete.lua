-- COMPLETE. KEYS: entry, leases, outbox. ARGV: call, attempt, token, success, result, ms to keep a done entry.
local state, on_record, token, stored = unpack(redis.call('HMGET', KEYS[1], 'state', 'attempt', 'token', 'result'))

if state and token ~= ARGV[3] then
  return {'fenced'}
end
if state == 'done' then
  redis.call('HSET', KEYS[3], ARGV[1] .. '#' .. on_record, stored)
  return {'completed', on_record}
end

redis.call('HSET', KEYS[1], 'state', 'done', 'attempt', ARGV[2], 'token', ARGV[3], 'success', ARGV[4], 'result', ARGV[5])
redis.call('HDEL', KEYS[1], 'request', 'takeover')
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1] .. '#' .. ARGV[2], ARGV[5])
return {'completed', ARGV[2]}
