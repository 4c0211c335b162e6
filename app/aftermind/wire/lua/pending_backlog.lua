-- Count pending turns. Moves expired leases back first, so that unclaimed turns count as runnable.
-- ARGV  1 maximum number of ids to return; then namespaces that no worker may claim
-- Returns {turns, runnable, bytes, ms of age of the oldest, namespaces with a runnable turn, {jobs, fairest first},
-- ms of age of the oldest among turns that are next, or were handed back unstored, in other namespaces than those,
-- turns among the oldest that were handed back}.
local MAX_NAMESPACES, MAX_OWNERS = 100, 8  -- among whose next turns the oldest is searched: the next ones to be served
local MAX_OLDEST = 100  -- turns that are searched for such as workers have handed back
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
-- They wait for a database, a key or a move, and use no attempt: one that is tried again after an error has used one.
local handed_back = 0
for _, job in ipairs(redis.call('ZRANGE', INDEX, 0, MAX_OLDEST - 1)) do
  local turn = redis.call('HMGET', TURN .. job, 'token', 'owner', 'at', 'attempts')
  if turn[2] and not turn[1] and tonumber(turn[4] or '0') == 0 and redis.call('ZSCORE', LEASED, job) then
    handed_back = handed_back + 1
    if not blocked[namespace_of(turn[2])] then claimable = math.max(claimable, age(turn[3])) end
  end
end
local oldest = redis.call('ZRANGE', INDEX, 0, 0, 'WITHSCORES')[2]
return {redis.call('ZCARD', INDEX), runnable(), tonumber(redis.call('HGET', COUNT, 'bytes') or 0),
  age(oldest), redis.call('ZCARD', ROUNDS), jobs, claimable, handed_back}
