-- FILL. KEYS: any of the home, so that a cluster asks whoever has it.
local memory = redis.call('INFO', 'memory')
return {tonumber(string.match(memory, 'used_memory:(%d+)')), tonumber(string.match(memory, 'maxmemory:(%d+)'))}
