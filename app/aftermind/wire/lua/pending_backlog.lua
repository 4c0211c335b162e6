-- Count pending turns. Moves expired leases back first, so that unclaimed turns count as runnable.
-- ARGV  1 maximum number of ids to return; then namespaces that no worker may claim
-- Returns {turns, runnable, bytes, ms of age of the oldest, namespaces with a runnable turn, {jobs, fairest first},
-- ms of age of the oldest among turns that are next in other namespaces than those}.
local MAX_NAMESPACES, MAX_OWNERS = 100, 8  -- among whose next turns the oldest is searched: the next ones to be served
local most, blocked = tonumber(ARGV[1]), named_in(ARGV, 2, #ARGV)
local now = now_ms()
expire_leases(now, 1000)

local function age(at)
  return tonumber(at or '') and now - tonumber(at) or 0
end

local jobs, claimable, open_namespaces = {}, 0, 0
for _, namespace in ipairs(redis.call('ZRANGE', ROUNDS, 0, -1)) do
  local is_open = not blocked[namespace] and open_namespaces < MAX_NAMESPACES
  if is_open then open_namespaces = open_namespaces + 1 end
  if is_open or #jobs < most then
    for place, owner in ipairs(redis.call('ZRANGE', OWNER_ROUNDS .. namespace, 0, math.max(most, MAX_OWNERS) - 1)) do
      local job = redis.call('ZRANGE', READY .. owner, 0, 0)[1]
      if job and #jobs < most then jobs[#jobs + 1] = job end
      if job and is_open and place <= MAX_OWNERS then
        claimable = math.max(claimable, age(redis.call('HGET', TURN .. job, 'at')))
      end
    end
  elseif open_namespaces >= MAX_NAMESPACES then
    break
  end
end
local oldest = redis.call('ZRANGE', INDEX, 0, 0, 'WITHSCORES')[2]
return {redis.call('ZCARD', INDEX), runnable(), tonumber(redis.call('HGET', COUNT, 'bytes') or 0),
  age(oldest), redis.call('ZCARD', ROUNDS), jobs, claimable}
