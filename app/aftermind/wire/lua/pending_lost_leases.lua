-- How many leases the turn has lost that is next to be claimed; -1 if none is.
-- ARGV  namespaces to skip
local skipped = named_in(ARGV, 1, #ARGV)
for _, namespace in ipairs(redis.call('ZRANGE', ROUNDS, 0, #ARGV)) do
  if not skipped[namespace] then
    local owner = redis.call('ZRANGE', OWNER_ROUNDS .. namespace, 0, 0)[1]
    local job = owner and redis.call('ZRANGE', READY .. owner, 0, 0)[1]
    return job and tonumber(redis.call('HGET', TURN .. job, 'lost') or 0) or -1
  end
end
return -1
