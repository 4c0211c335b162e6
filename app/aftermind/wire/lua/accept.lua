-- Take a group of turns and ring for them: the whole of remember(), in one call.
-- ARGV  1 queue   the list that bells are pushed to
--       2 bells   ring only while fewer than so many wait there; a waiting bell is popped after this call, so its worker
--                 finds these turns as well
--       3-6       limits: turns and bytes of everybody, ms of age of the oldest, turns of one owner
--       7 n       turns; then for each: job, owner, session, base, messages, keep ('1': its base is the truth), payload
--       then      the bells' messages, at most n, in the order of the turns
-- Returns for each turn: 0, base accepted; 1, base known already; 2..5, value refused by the limit of that place. All
-- in one list, which is half the work to read; at its end the number of bells rung.
local queue, bells = ARGV[1], tonumber(ARGV[2])
local most_turns, most_bytes, most_age, most_owned =
  tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local n = tonumber(ARGV[7])
local first_bell = 8 + n * 7
local now = now_ms()
local stamp = whole(now)

local turns = redis.call('ZCARD', INDEX)
local bytes = tonumber(redis.call('HGET', COUNT, 'bytes') or 0)
-- A count, not the oldest turn itself: an agent's Redis user cannot list job ids (wire/acl.py).
local is_late = redis.call('ZCOUNT', INDEX, '-inf', '(' .. whole(now - most_age)) > 0

local function refusal(owner, size)
  if turns >= most_turns then return 2, turns end
  if bytes + size > most_bytes then return 3, bytes end
  if is_late then return 4, most_age end
  local owned = redis.call('ZCARD', PENDING .. owner)
  if owned >= most_owned then return 5, owned end
  return 0, 0
end

-- Sessions of an owner that have been silent for long need no high mark; looked at now and then as sessions come.
local function trim(owner)
  local key = HIGH .. owner
  if redis.call('HLEN', key) % 256 ~= 0 then return end
  local marks = redis.call('HGETALL', key)
  for i = 1, #marks, 2 do
    if tonumber(marks[i + 1]) < (now - HIGH_SECONDS * 1000) * 1000 then redis.call('HDEL', key, marks[i]) end
  end
end

local function place(owner, session, base, messages, keep)
  local high = redis.call('HGET', HIGH .. owner, session)
  local mark = tonumber(high or 0)
  if not keep and base <= mark then base = mark + 1 end
  local new = redis.call('HSET', HIGH .. owner, session, whole(math.max(mark, base + messages - 1)))
  -- Once an hour is enough for a key that lives a week, and keeps it out of most turns.
  if math.floor(mark / 3.6e9) ~= math.floor(base / 3.6e9) then redis.call('EXPIRE', HIGH .. owner, HIGH_SECONDS) end
  if new == 1 then trim(owner) end
  return base
end

local answers, accepted = {}, {}
for i = 1, n do
  local at = 8 + (i - 1) * 7
  local job, owner, payload = ARGV[at], ARGV[at + 1], ARGV[at + 6]
  local known = redis.call('HGET', TURN .. job, 'base')
  local code, value = 0, 0
  if known then
    code, value = 1, tonumber(known)
  else
    code, value = refusal(owner, #payload)
  end
  if code == 0 then
    value = place(owner, ARGV[at + 2], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), ARGV[at + 5] == '1')
    local base = whole(value)
    redis.call('HSET', TURN .. job, 'payload', payload, 'owner', owner, 'base', base, 'at', stamp, 'size', #payload)
    redis.call('ZADD', PENDING .. owner, base, job)
    redis.call('ZADD', INDEX, stamp, job)
    redis.call('HINCRBY', COUNT, 'bytes', #payload)
    make_ready(job, owner, base)
    turns, bytes = turns + 1, bytes + #payload
    accepted[#accepted + 1] = i
  end
  answers[2 * i - 1], answers[2 * i] = code, value
end

local rung = 0
if #accepted > 0 and ARGV[first_bell] then
  local room = bells - redis.call('LLEN', queue)
  for _, i in ipairs(accepted) do
    local bell = ARGV[first_bell + i - 1]
    if rung >= room or not bell then break end
    redis.call('LPUSH', queue, bell)
    rung = rung + 1
  end
  if rung == 0 and room > 0 then  -- only turns without a bell of their own are new: any bell means "there is work"
    redis.call('LPUSH', queue, ARGV[first_bell])
    rung = 1
  end
end
answers[2 * n + 1] = rung
return answers
