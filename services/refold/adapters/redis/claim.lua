-- CLAIM. KEYS: entry, leases, outbox. ARGV: call, attempt, token, lease ms, request, ms to keep a started entry.
local entry = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'token', 'closed', 'takeover', 'success', 'result')
local state, on_record, token, closed, takeover, success, result = unpack(entry)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if state then
  local attempt = tonumber(ARGV[2])
  if state == 'done' and (success == '1' or tonumber(on_record) == attempt) then
    redis.call('HSET', KEYS[3], ARGV[1] .. '#' .. on_record, result)
    return {'stored', on_record, result}
  end
  if closed or attempt < tonumber(on_record) then
    return {'superseded'}
  end
  if state == 'started' then
    if token == ARGV[3] then
      return {'claimed', tonumber(takeover)}
    end
    local lease = redis.call('ZSCORE', KEYS[2], ARGV[1])
    if lease and tonumber(lease) > now then
      return {'busy', tonumber(lease) - now}
    end
  end
end

local over = state == 'started' and 1 or 0
if state then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'state', 'started', 'attempt', ARGV[2], 'token', ARGV[3], 'takeover', over, 'request', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[1])
return {'claimed', over}
