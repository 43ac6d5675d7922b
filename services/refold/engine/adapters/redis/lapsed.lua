-- LAPSED. KEYS: leases. ARGV: what an entry's key starts with (same hash tag), limit, longest lease in ms, heir.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local orders, orphans = {}, {}

local mine, heir = string.match(ARGV[4], '^([^/]*)/(.*)$')
for _, key in ipairs(heir and redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf') or {}) do
  local theirs, owner = string.match(redis.call('HGET', ARGV[1] .. key, 'owner') or '', '^([^/]*)/(.*)$')
  if owner == heir and theirs ~= mine then
    redis.call('ZADD', KEYS[1], 0, key)
  end
end

local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])
if #due < tonumber(ARGV[2]) then
  -- Given when this clock was ahead: it would hold its call for as long as the clock was wrong.
  local beyond = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now + ARGV[3]), '+inf', 'LIMIT', 0, ARGV[2] - #due)
  for _, key in ipairs(beyond) do
    due[#due + 1] = key
  end
end
for _, key in ipairs(due) do
  local order, back = unpack(redis.call('HMGET', ARGV[1] .. key, 'order', 'back'))
  if order and order ~= '' and not back then
    orders[#orders + 1] = key
    orders[#orders + 1] = order
  else
    orphans[#orphans + 1] = key -- the entry has expired, or its order is taken back, or nobody there knew if it was
  end
end

for _, key in ipairs(orphans) do
  redis.call('ZREM', KEYS[1], key)
end
return orders
