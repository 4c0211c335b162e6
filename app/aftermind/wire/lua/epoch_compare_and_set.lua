-- Compare and set the epoch.
-- ARGV  1 what it must be ('': absent), 2 what it becomes
-- Returns 1, or 0 where it is something else.
if (redis.call('GET', EPOCH) or '') ~= ARGV[1] then return 0 end
redis.call('SET', EPOCH, ARGV[2])
return 1
