-- CLAIM. KEYS: entry, leases. ARGV: key, call, attempt, token, lease ms, order, ms to keep a started entry, longest lease, owner.
local entry = redis.call('HMGET', KEYS[1], 'state', 'call', 'attempt', 'token', 'closed', 'takeover', 'success', 'result', 'order', 'back')
local state, call, on_record, token, closed, takeover, success, result, order, back = unpack(entry)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local own = call == ARGV[2] -- or of another life of the run, whose attempts were counted apart

if state then
  local attempt = tonumber(ARGV[3])
  if own and closed then
    return {'superseded', 1, '', 0}
  end
  if state == 'done' and not closed and (success == '1' or own and tonumber(on_record) == attempt) then
    return {'stored', result}
  end
  if own and back and attempt <= tonumber(back) then
    return {'superseded', 1, '', 1}
  end
  if own and attempt < tonumber(on_record) then
    return {'superseded', 0, state == 'done' and result or order or '', state == 'done' and 1 or 0}
  end
  if state == 'started' and not closed then
    if token == ARGV[4] then
      return {'claimed', takeover or ''}
    end
    local lease = redis.call('ZSCORE', KEYS[2], ARGV[1])
    -- Further ahead than a lease can be: this clock was ahead when it was given.
    if lease and tonumber(lease) > now and tonumber(lease) <= now + ARGV[8] then
      return {'busy', tonumber(lease) - now}
    end
  end
end

local over = ''
if state == 'started' or state and not own then
  over = token ~= '' and token or takeover or '' -- without a token it was handed over before it had begun
end
if state then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'state', 'started', 'call', ARGV[2], 'attempt', ARGV[3], 'token', ARGV[4], 'takeover', over, 'order', ARGV[6], 'owner', ARGV[9])
redis.call('PEXPIRE', KEYS[1], ARGV[7])
redis.call('ZADD', KEYS[2], now + ARGV[5], ARGV[1])
return {'claimed', over}
