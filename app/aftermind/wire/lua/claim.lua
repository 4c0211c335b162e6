-- Take turns to store: one of each namespace a round, of its owners in turn, oldest first within an owner.
-- ARGV  1 token, 2 worker, 3 ms of lease, 4 most turns, 5 most bytes, 6 lost leases that make a turn poison,
--       7 turns that the caller has already, to which these are added,
--       8... most turns that lost 1, 2... leases; 0: none, and nothing behind such a one
-- Returns a list of {job, owner, payload, base, attempts (this one too), lost, ms of acceptance, poison (1 or 0)}.
-- Turns that lost a lease come with others that lost as many; one with too many comes alone, flagged, to be buried.
local token, worker, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local most_turns, most_bytes, most_lost = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local already = tonumber(ARGV[7])
local now = now_ms()
expire_leases(now, 1000)

-- Who is next, or nil: {namespace, its round, owner, its round, job}. Rows that lead nowhere (a key that somebody deleted
-- by hand) are swept away.
local function next_turn()
  while true do
    local namespace = redis.call('ZRANGE', ROUNDS, 0, 0, 'WITHSCORES')
    if not namespace[1] then return nil end
    local owner = redis.call('ZRANGE', ROUNDS_OF .. namespace[1], 0, 0, 'WITHSCORES')
    local job = owner[1] and redis.call('ZRANGE', READY .. owner[1], 0, 0)[1]
    if not owner[1] then
      redis.call('ZREM', ROUNDS, namespace[1])
    elseif not job then
      leave_rounds(owner[1])
    elseif redis.call('EXISTS', TURN .. job) == 0 then
      redis.call('ZREM', READY .. owner[1], job)
      redis.call('ZREM', PENDING .. owner[1], job)
      redis.call('ZREM', INDEX, job)
    else
      return {namespace[1], namespace[2], owner[1], owner[2], job}
    end
  end
end

local function serve(turn)
  local namespace, owner = turn[1], turn[3]
  redis.call('ZREM', READY .. owner, turn[5])
  redis.call('HSET', SERVED, '', turn[2], namespace, turn[4])
  redis.call('ZADD', ROUNDS, whole(turn[2] + 1), namespace)
  if redis.call('EXISTS', READY .. owner) == 1 then
    redis.call('ZADD', ROUNDS_OF .. namespace, whole(turn[4] + 1), owner)
  else
    leave_rounds(owner)
  end
end

local claimed, bytes, kind = {}, 0, nil
while #claimed < most_turns do
  local following = next_turn()
  if not following then break end
  local job = following[5]
  local turn = redis.call('HMGET', TURN .. job, 'payload', 'base', 'lost', 'at')
  local lost = tonumber(turn[3] or 0)
  local size = #turn[1]
  local most_such = lost > 0 and tonumber(ARGV[7 + lost] or 1) or most_turns
  if (already > 0 and lost > 0) or (kind and lost ~= kind) or most_such == 0 then break end
  if already + #claimed > 0 and bytes + size > most_bytes then break end

  serve(following)
  redis.call('HSET', TURN .. job, 'token', token, 'worker', worker)
  local attempts = redis.call('HINCRBY', TURN .. job, 'attempts', 1)
  redis.call('ZADD', LEASED, whole(now + lease), job)
  bytes = bytes + size
  claimed[#claimed + 1] =
    {job, following[3], turn[1], turn[2], attempts, lost, turn[4], lost >= most_lost and 1 or 0}
  kind = lost
  if #claimed >= most_such then break end
end
return claimed
