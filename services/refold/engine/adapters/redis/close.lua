-- CLOSE. KEYS: leases, entries. ARGV: ms to keep a closed entry, then of each entry key, call, and up to which attempt
-- its orders are taken back (0: the call is over).
for i = 2, #KEYS do
  local key, call, back = ARGV[3 * i - 4], ARGV[3 * i - 3], tonumber(ARGV[3 * i - 2])
  local entry = redis.pcall('HMGET', KEYS[i], 'call', 'closed', 'state', 'attempt', 'token') -- one that is none fails none
  local on_record, closed, state, attempt, token = unpack(entry)
  local known = on_record == call and not closed and state and attempt and token
  if known and back > 0 then
    if (tonumber(attempt) or back + 1) <= back then
      redis.call('HSET', KEYS[i], 'back', back)
    end
  elseif known then
    redis.call('DEL', KEYS[i]) -- made anew it is packed; it would keep the table that its result had made of it
    redis.call('HSET', KEYS[i], 'call', call, 'closed', 1, 'state', state, 'attempt', attempt, 'token', token)
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
    redis.call('ZREM', KEYS[1], key)
  end
end
return false
