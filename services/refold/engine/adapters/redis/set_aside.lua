-- SET ASIDE. KEYS: leases, outbox, quarantine. ARGV: what an entry's key starts with (same hash tag), most, most bytes,
-- ms to keep, how many leases, how many broken entries; then leases, broken entries and fields by name.
local function keep(name, content)
  if redis.call('HLEN', KEYS[3]) < tonumber(ARGV[2]) then
    redis.call('HSETNX', KEYS[3], name, string.sub(content or '', 1, tonumber(ARGV[3])))
    redis.call('PEXPIRE', KEYS[3], ARGV[4])
  end
end

local function dispose(key, kind)
  local there = redis.call('TYPE', key).ok
  if there ~= 'none' and there ~= kind then
    redis.call('DEL', key)
  end
end

dispose(KEYS[3], 'hash')
dispose(KEYS[1], 'zset')
dispose(KEYS[2], 'hash')
local leases, broken = tonumber(ARGV[5]), tonumber(ARGV[6])
for i = 7, #ARGV do
  local name = ARGV[i]
  if i < 7 + leases + broken then
    local key = ARGV[1] .. name
    dispose(key, 'hash')
    local content = redis.call('HMGET', key, 'order', 'result')
    keep('entry:' .. name, content[1] or content[2])
    redis.call('ZREM', KEYS[1], name)
    if i >= 7 + leases then
      redis.call('DEL', key)
    end
  else
    keep('result:' .. name, redis.call('HGET', KEYS[2], name))
    redis.call('HDEL', KEYS[2], name)
  end
end
return false
