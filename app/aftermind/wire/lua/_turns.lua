-- Put before each of the other scripts, after the names of the keys (wire/keys.py): what several of them do to a turn.

local function whole(number)  -- tostring() would write 1.75e+15
  return string.format('%.0f', number)
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function namespace_of(owner)
  return string.match(owner, '^[^/]*')
end

-- Let it be claimed. Namespaces are served in rounds, and within each its owners. Who had nothing waiting joins at the
-- end of the current round: behind those who wait already, before anybody's second turn. So no newcomer is starved, and
-- none can starve the others.
local function make_ready(job, owner, base)
  redis.call('ZADD', READY .. owner, base, job)
  if redis.call('ZCARD', READY .. owner) > 1 then return end
  local namespace = namespace_of(owner)
  local served = redis.call('HMGET', SERVED, '', namespace)
  redis.call('ZADD', ROUNDS_OF .. namespace, 'NX', whole((served[2] or 0) + 1), owner)
  local owed = redis.call('ZSCORE', FINISHED, namespace) or 0
  redis.call('ZADD', ROUNDS, 'NX', whole(math.max((served[1] or 0) + 1, owed)), namespace)
end

-- The owner has nothing waiting any more.
local function leave_rounds(owner)
  local namespace = namespace_of(owner)
  redis.call('ZREM', ROUNDS_OF .. namespace, owner)
  if redis.call('EXISTS', ROUNDS_OF .. namespace) == 0 then
    redis.call('ZREM', ROUNDS, namespace)
    redis.call('HDEL', SERVED, namespace)
  end
end

-- Every trace of a turn, whoever holds it. 1, or 0 where it was gone.
local function remove(job)
  local turn = redis.call('HMGET', TURN .. job, 'owner', 'size')
  local owner = turn[1]
  if not owner then return 0 end
  redis.call('DEL', TURN .. job)
  redis.call('ZREM', PENDING .. owner, job)
  redis.call('ZREM', INDEX, job)
  redis.call('ZREM', LEASED, job)
  if tonumber(turn[2] or '') then redis.call('HINCRBY', COUNT, 'bytes', '-' .. turn[2]) end
  if redis.call('ZREM', READY .. owner, job) == 1 and redis.call('EXISTS', READY .. owner) == 0 then
    leave_rounds(owner)
  end
  return 1
end

-- Turns whose lease has run out can be claimed again, one lost lease richer; those that were snoozed (no token), as
-- they were.
local function expire_leases(now, limit)
  for _, job in ipairs(redis.call('ZRANGEBYSCORE', LEASED, '-inf', whole(now), 'LIMIT', 0, limit)) do
    redis.call('ZREM', LEASED, job)
    local turn = redis.call('HMGET', TURN .. job, 'owner', 'base', 'token')
    if turn[1] and tonumber(turn[2] or '') then
      if turn[3] then
        redis.call('HINCRBY', TURN .. job, 'lost', 1)
        redis.call('HSET', TURN .. job, 'lost_token', turn[3])
        redis.call('HDEL', TURN .. job, 'token')
      end
      make_ready(job, turn[1], turn[2])
    end
  end
end

local function runnable()
  return redis.call('ZCARD', INDEX) - redis.call('ZCARD', LEASED)
end
