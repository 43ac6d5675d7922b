-- LAPSED. KEYS: leases. ARGV: what an entry's key starts with (same hash tag), limit.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local orders, orphans = {}, {}

for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])) do
  local order = redis.call('HGET', ARGV[1] .. key, 'order')
  if order then
    orders[#orders + 1] = key
    orders[#orders + 1] = order
  else
    orphans[#orphans + 1] = key -- the entry has expired, and nothing but this index remembers the key
  end
end

for _, key in ipairs(orphans) do
  redis.call('ZREM', KEYS[1], key)
end
return orders
