-- RENEW. KEYS: entry, leases. ARGV: key, call, attempt, token, lease ms, order, ms to keep a started entry, owner.
local state, token, closed = unpack(redis.call('HMGET', KEYS[1], 'state', 'token', 'closed'))
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if state and token ~= ARGV[4] then
  return {'fenced'}
end
if state == 'done' or closed then
  return {'renewed', 1}
end

if not state then
  redis.call('HSET', KEYS[1], 'state', 'started', 'call', ARGV[2], 'attempt', ARGV[3], 'token', ARGV[4], 'takeover', '', 'order', ARGV[6])
end
redis.call('HSET', KEYS[1], 'owner', ARGV[8])
redis.call('PEXPIRE', KEYS[1], ARGV[7])
redis.call('ZADD', KEYS[2], now + ARGV[5], ARGV[1])
return {'renewed', 0}
