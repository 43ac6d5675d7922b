-- CLOSE. KEYS: leases, entries. ARGV: ms to keep a closed entry, then key and call of each entry.
for i = 2, #KEYS do
  local key, call = ARGV[2 * i - 2], ARGV[2 * i - 1]
  local entry = redis.pcall('HMGET', KEYS[i], 'call', 'closed', 'state', 'attempt', 'token') -- one that is none fails none
  local on_record, closed, state, attempt, token = unpack(entry)
  if on_record == call and not closed and state and attempt and token then
    redis.call('DEL', KEYS[i]) -- made anew it is packed; it would keep the table that its result had made of it
    redis.call('HSET', KEYS[i], 'call', call, 'closed', 1, 'state', state, 'attempt', attempt, 'token', token)
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
    redis.call('ZREM', KEYS[1], key)
  end
end
return false
