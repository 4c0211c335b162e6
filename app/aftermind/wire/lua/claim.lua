-- Take turns to store, one of each owner a round, oldest first within an owner.
-- ARGV  1 token, 2 worker, 3 ms of lease, 4 most turns, 5 most bytes, 6 lost leases that make a turn poison
-- Returns a list of {job, owner, payload, base, attempts (this one too), lost, ms of acceptance, poison (1 or 0)}.
-- A turn that lost a lease comes alone; one with too many of them too, flagged, to be buried.
local token, worker, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local most_turns, most_bytes, most_lost = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local now = now_ms()
expire_leases(now, 1000)

-- The turn that is next, or nil: rows of others that lead nowhere are swept away (a key that somebody deleted by hand).
local function next_turn()
  while true do
    local head = redis.call('ZRANGE', ROUNDS, 0, 0, 'WITHSCORES')
    if not head[1] then return nil end
    local job = redis.call('ZRANGE', READY .. head[1], 0, 0)[1]
    if not job then
      redis.call('ZREM', ROUNDS, head[1])
    elseif redis.call('EXISTS', TURN .. job) == 0 then
      redis.call('ZREM', READY .. head[1], job)
      redis.call('ZREM', PENDING .. head[1], job)
      redis.call('ZREM', INDEX, job)
    else
      return head[1], head[2], job
    end
  end
end

local claimed, bytes = {}, 0
local round = nil
while #claimed < most_turns do
  local owner, turns_round, job = next_turn()
  if not owner then break end
  local turn = redis.call('HMGET', TURN .. job, 'payload', 'base', 'lost', 'at')
  local lost = tonumber(turn[3] or 0)
  local size = #turn[1]
  if #claimed > 0 and (lost > 0 or bytes + size > most_bytes) then break end

  round = turns_round
  redis.call('ZREM', READY .. owner, job)
  if redis.call('EXISTS', READY .. owner) == 1 then
    redis.call('ZADD', ROUNDS, whole(round + 1), owner)
  else
    redis.call('ZREM', ROUNDS, owner)
  end
  redis.call('HSET', TURN .. job, 'token', token, 'worker', worker)
  local attempts = redis.call('HINCRBY', TURN .. job, 'attempts', 1)
  redis.call('ZADD', LEASED, whole(now + lease), job)
  bytes = bytes + size
  claimed[#claimed + 1] = {job, owner, turn[1], turn[2], attempts, lost, turn[4], lost >= most_lost and 1 or 0}
  if lost > 0 then break end
end
if round then redis.call('HSET', COUNT, 'round', round) end
return claimed
