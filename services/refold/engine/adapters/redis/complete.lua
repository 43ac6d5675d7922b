-- COMPLETE. KEYS: entry, leases, outbox. ARGV: key, call, attempt, token, success, result, ms to keep a done entry.
local entry = redis.call('HMGET', KEYS[1], 'state', 'call', 'attempt', 'token', 'closed', 'result')
local state, call, on_record, token, closed, stored = unpack(entry)

if state and token ~= ARGV[4] then
  return {'fenced'}
end
if state == 'done' and not closed then
  redis.call('HSET', KEYS[3], call .. '#' .. on_record, stored)
  return {'completed', call .. '#' .. on_record}
end

if not closed then
  redis.call('HSET', KEYS[1], 'state', 'done', 'call', ARGV[2], 'attempt', ARGV[3], 'token', ARGV[4], 'success', ARGV[5], 'result', ARGV[6])
  redis.call('HDEL', KEYS[1], 'order', 'owner', 'takeover')
  redis.call('PEXPIRE', KEYS[1], ARGV[7])
  redis.call('ZREM', KEYS[2], ARGV[1])
end
redis.call('HSET', KEYS[3], ARGV[2] .. '#' .. ARGV[3], ARGV[6])
return {'completed', ARGV[2] .. '#' .. ARGV[3]}
