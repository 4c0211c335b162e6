-- Refuse the turns of a tenant from now on, because another database serves it, unless the other one lacks some of them.
-- ARGV  1 namespace, 2 database, 3 ms since which turns may have been accepted that the other one lacks,
--       then jobs that it has
-- Returns jobs that it lacks; none: the switch is made.
local known, missing = {}, {}
for i = 4, #ARGV do known[ARGV[i]] = true end
for _, job in ipairs(redis.call('ZRANGEBYSCORE', INDEX, ARGV[3], '+inf')) do
  local owner = redis.call('HGET', TURN .. job, 'owner')
  if not known[job] and owner and namespace_of(owner) == ARGV[1] then missing[#missing + 1] = job end
end
if #missing == 0 then redis.call('SET', MOVED .. ARGV[1], ARGV[2]) end
return missing
