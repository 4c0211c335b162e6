-- Count pending turns. Moves expired leases back first, so that unclaimed turns count as runnable.
-- ARGV  1 maximum number of ids to return
-- Returns {turns, runnable, bytes, ms of age of the oldest, namespaces with a runnable turn, {jobs, fairest first}}.
local now = now_ms()
expire_leases(now, 1000)
local oldest = redis.call('ZRANGE', INDEX, 0, 0, 'WITHSCORES')[2]
local jobs = {}
for _, namespace in ipairs(redis.call('ZRANGE', ROUNDS, 0, -1)) do
  for _, owner in ipairs(redis.call('ZRANGE', OWNER_ROUNDS .. namespace, 0, -1)) do
    if #jobs >= tonumber(ARGV[1]) then break end
    jobs[#jobs + 1] = redis.call('ZRANGE', READY .. owner, 0, 0)[1]
  end
  if #jobs >= tonumber(ARGV[1]) then break end
end
return {redis.call('ZCARD', INDEX), runnable(), tonumber(redis.call('HGET', COUNT, 'bytes') or 0),
  oldest and now - tonumber(oldest) or 0, redis.call('ZCARD', ROUNDS), jobs}
