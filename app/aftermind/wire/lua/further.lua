-- Keep the end of an audit trail, where it is further than the one that is kept.
-- ARGV  1 namespace, 2 number of the last entry, 3 its code
-- Returns 1 where it was kept.
local there = redis.call('HGET', AUDIT, ARGV[1])
if there and tonumber(string.match(there, '^%d+')) >= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', AUDIT, ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
return 1
