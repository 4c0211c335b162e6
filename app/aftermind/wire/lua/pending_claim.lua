-- Claim turns to store: one of each namespace per round, of its owners in turn, oldest first within an owner.
-- ARGV  1 token, 2 worker, 3 ms of lease, 4 maximum turns, 5 maximum bytes, 6 lost leases that make a turn poison,
-- 7 turns that the caller already has, to which these are added,
-- 8 '1': turns larger than LARGE_TURN_BYTES may be claimed, each alone; '0': they are skipped,
-- 9 number of namespaces to skip, then these, then the maximum turns that lost 1, 2... leases; 0: none, and nothing
-- after such a turn
-- Returns a list of {job, owner, payload, base, attempts (this one included), lost, ms of acceptance, poison (1 or 0),
-- generation ('': accepted before Redis had received any; nil: not recorded), start of its session's count, the worker
-- that had it before}.
-- Turns that lost a lease are claimed with others that lost as many; one with too many is claimed alone, flagged, to be
-- dead-lettered.
--
-- A round is virtual time: a turn costs its namespace and its owner one round per started TURN_COST_BYTES. A namespace
-- that is ahead of the others still owes this when it returns (FINISHED).
local token, worker, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local most_turns, most_bytes, most_lost = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local already = tonumber(ARGV[7])
local may_take_large = ARGV[8] == '1'
local first_limit = 10 + ARGV[9]
local skipped = named_in(ARGV, 10, first_limit - 1)
local now = now_ms()
expire_leases(now, 1000)
redis.call('ZREMRANGEBYSCORE', FINISHED, '-inf', redis.call('HGET', SERVED, '') or 0)

-- The size of an entry that has what accept writes, else nil. A key that was written by hand must not stop the turns
-- of others. Without the payload, which may be large: one that is missing becomes a dead letter.
local function size_of(job, owner)
  local turn = redis.pcall('HMGET', TURN .. job, 'owner', 'base', 'at', 'size', 'lost', 'attempts')
  if turn.err or turn[1] ~= owner then return nil end
  for i = 2, 4 do
    if not tonumber(turn[i] or '') then return nil end
  end
  return tonumber(turn[5] or 0) and tonumber(turn[6] or 0) and turn[4]
end

-- The next turn, or nil: {namespace, its round, owner, its round, job}. Passes over namespaces to skip, and large turns
-- that may not be taken, MAX_PASSED_OVER of these at most. Rows without a whole entry are removed.
local MAX_PASSED_OVER = 64

local function next_turn()
  local at_namespace, at_owner, passed_over = 0, 0, 0
  while passed_over < MAX_PASSED_OVER do
    local namespace = redis.call('ZRANGE', ROUNDS, at_namespace, at_namespace, 'WITHSCORES')
    if not namespace[1] then return nil end
    local is_skipped = skipped[namespace[1]]
    local owner = is_skipped and {} or redis.call('ZRANGE', OWNER_ROUNDS .. namespace[1], at_owner, at_owner, 'WITHSCORES')
    local job = owner[1] and redis.call('ZRANGE', READY .. owner[1], 0, 0)[1]
    local size = job and size_of(job, owner[1])
    if is_skipped then
      at_namespace, at_owner = at_namespace + 1, 0
    elseif not owner[1] then
      if at_owner == 0 then redis.call('ZREM', ROUNDS, namespace[1]) else at_namespace = at_namespace + 1 end
      at_owner = 0
    elseif not job then
      leave_rounds(owner[1])
    elseif not size then
      redis.call('DEL', TURN .. job)
      redis.call('ZREM', LEASED, job)
      redis.call('ZREM', READY .. owner[1], job)
      redis.call('ZREM', PENDING .. owner[1], job)
      redis.call('ZREM', INDEX, job)
    elseif tonumber(size) > LARGE_TURN_BYTES and not may_take_large then
      passed_over, at_owner = passed_over + 1, at_owner + 1
    else
      return {namespace[1], namespace[2], owner[1], owner[2], job}
    end
  end
end

local function serve(turn, size)
  local namespace, owner = turn[1], turn[3]
  local cost = math.max(1, math.ceil(size / TURN_COST_BYTES))
  redis.call('ZREM', READY .. owner, turn[5])
  redis.call('HSET', SERVED, '', turn[2], namespace, turn[4])
  redis.call('ZADD', ROUNDS, whole(turn[2] + cost), namespace)
  if redis.call('EXISTS', READY .. owner) == 1 then
    redis.call('ZADD', OWNER_ROUNDS .. namespace, whole(turn[4] + cost), owner)
    return
  end
  leave_rounds(owner)
  if cost > 1 and not redis.call('ZSCORE', ROUNDS, namespace) then
    redis.call('ZADD', FINISHED, whole(turn[2] + cost), namespace)
  end
end

local claimed, bytes, kind = {}, 0, nil
while #claimed < most_turns do
  local following = next_turn()
  if not following then break end
  local job = following[5]
  local turn = redis.call('HMGET', TURN .. job, 'payload', 'base', 'lost', 'at', 'generation', 'from', 'worker', 'sent')
  local lost = tonumber(turn[3] or 0)
  turn[1] = turn[1] or ''
  local size = #turn[1]
  local most_such = lost > 0 and tonumber(ARGV[first_limit - 1 + lost] or 1) or most_turns
  if (already > 0 and lost > 0) or (kind and lost ~= kind) or most_such == 0 then break end
  if already + #claimed > 0 and (bytes + size > most_bytes or size > LARGE_TURN_BYTES) then break end

  serve(following, size)
  redis.call('HSET', TURN .. job, 'token', token, 'worker', worker)
  local attempts = redis.call('HINCRBY', TURN .. job, 'attempts', 1)
  redis.call('ZADD', LEASED, whole(now + lease), job)
  bytes = bytes + size
  claimed[#claimed + 1] =
    {job, following[3], turn[1], turn[2], attempts, lost, number_of(turn[8]) or turn[4], lost >= most_lost and 1 or 0,
     resolved(turn[5]), turn[6], turn[7]}
  kind = lost
  if #claimed >= most_such or size > LARGE_TURN_BYTES then break end
end
return claimed
