-- Put before each of the other scripts, after the names of the keys (wire/redis_keys.py): what several of them do to a turn.

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

-- Arguments of a script, from one place to another, as a set.
local function named_in(arguments, first, last)
  local names = {}
  for at = first, last do names[arguments[at]] = true end
  return names
end

local function is_less(a, b)  -- decimal texts of any length: an LSN has 64 bits, a Lua number 53
  if #a ~= #b then return #a < #b end
  return a < b
end

-- A decimal number as text, nil for anything else: every process that may write a key can put another text there.
local function number_of(text)
  if text and #text <= 18 and string.match(text, '^%d+$') then return text end
end

-- The number of the latest erasure that Redis or the caller has, '' if neither has one; Redis stores it. `begun` is the
-- generation of turns that were accepted before Redis had any number ('': the caller cannot determine it).
local function raise_generation(known, begun)
  if number_of(begun) then redis.call('HSETNX', GENERATION, 'begun', begun) end
  local last = number_of(redis.call('HGET', GENERATION, 'last'))
  if not number_of(known) or (last and not is_less(last, known)) then return last or '' end
  redis.call('HSET', GENERATION, 'last', known)
  return known
end

-- The generation of a turn as its entry has it. '': accepted before Redis had received any; false: not recorded.
local function resolved(generation)
  if not generation or generation == '-' or number_of(generation) then return generation or false end
  return number_of(redis.call('HGET', GENERATION, 'begun')) or ''
end

-- Make it claimable. Namespaces are served in rounds, and within each its owners. An owner without waiting turns joins
-- at the end of the current round: after those that already wait, before any second turn. So no newcomer is starved,
-- and none can starve the others.
local function make_ready(job, owner, base)
  redis.call('ZADD', READY .. owner, base, job)
  if redis.call('ZCARD', READY .. owner) > 1 then return end
  local namespace = namespace_of(owner)
  local served = redis.call('HMGET', SERVED, '', namespace)
  redis.call('ZADD', OWNER_ROUNDS .. namespace, 'NX', whole((served[2] or 0) + 1), owner)
  local owed = redis.call('ZSCORE', FINISHED, namespace) or 0
  redis.call('ZADD', ROUNDS, 'NX', whole(math.max((served[1] or 0) + 1, owed)), namespace)
end

-- The owner has nothing waiting any more.
local function leave_rounds(owner)
  local namespace = namespace_of(owner)
  redis.call('ZREM', OWNER_ROUNDS .. namespace, owner)
  if redis.call('EXISTS', OWNER_ROUNDS .. namespace) == 0 then
    redis.call('ZREM', ROUNDS, namespace)
    redis.call('HDEL', SERVED, namespace)
  end
end

-- Delete every trace of a turn, whichever process holds it. Returns 1, or 0 if there was none.
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

-- The hash of a stored turn stays for some seconds, for a caller that asked the database before the turn was there. An
-- erasure frees the key: it raises the generation of what is accepted later.
local function keep_hash(job, generation, hash)
  redis.call('SET', SETTLED .. job .. ':' .. generation, hash, 'EX', SETTLED_SECONDS)
end

local function was_stored_with_other_content(job, generation, hash)
  return hash ~= '' and (redis.call('GET', SETTLED .. job .. ':' .. generation) or hash) ~= hash
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

-- Sessions that have been silent for long need no maximum; checked occasionally when sessions arrive.
local function trim(owner, now)
  local key = HIGH .. owner
  if redis.call('HLEN', key) % 256 ~= 0 then return end
  local marks = redis.call('HGETALL', key)
  for i = 1, #marks, 2 do
    if tonumber(marks[i + 1]) < (now - HIGH_SECONDS * 1000) * 1000 then
      redis.call('HDEL', key, marks[i])
      redis.call('HDEL', COUNTED_FROM .. owner, marks[i])
    end
  end
end

-- The order of a session is the order in which its turns arrive here, whatever the clocks of their senders are.
local function place(owner, session, base, messages, now)
  local high = redis.call('HGET', HIGH .. owner, session)
  local mark = tonumber(high or 0)
  if base <= mark then base = mark + 1 end
  local from = high and redis.call('HGET', COUNTED_FROM .. owner, session)
  if not from then
    from = whole(base)
    redis.call('HSET', COUNTED_FROM .. owner, session, from)
    redis.call('EXPIRE', COUNTED_FROM .. owner, HIGH_SECONDS)
  end
  local new = redis.call('HSET', HIGH .. owner, session, whole(base + messages - 1))
  -- Once an hour is enough for a key that lives a week, and keeps it out of most turns.
  if math.floor(mark / 3.6e9) ~= math.floor(base / 3.6e9) then
    redis.call('EXPIRE', HIGH .. owner, HIGH_SECONDS)
    redis.call('EXPIRE', COUNTED_FROM .. owner, HIGH_SECONDS)
  end
  if new == 1 then trim(owner, now) end
  return base, from
end
