-- Accept a group of turns and send doorbells: all of remember(), in one call.
-- ARGV  1 queue   the list to which doorbells are pushed
-- 2 bells   push only while fewer than this wait there; a waiting doorbell is popped after this call, so its worker
-- finds these turns as well
-- 3-6       limits: turns and bytes of all users, ms of age of the oldest, turns of one owner
-- 7 `known` the highest generation of the caller ('': none)
-- 8 `sent`  when the caller sent this, in ms of this server's clock ('': unknown). Where that is MAX_ACCEPT_MS ago or
-- more (the server was suspended), the turns count as accepted then
-- 9 n       turns; then for each: job, owner, session, base, messages, generation ('': the last; '<4': 4, or the last if
-- that is lower; '-': none), hash of the content ('': without a key), payload
-- then      the doorbell messages, at most n, in the order of the turns
-- Returns for each turn: 0, base: accepted; 1, base: exists already; 2..5, value: refused by the limit of that
-- position;
-- 6, base: exists with other content, or did some seconds ago (0); 7, database: its tenant has moved there. All in one
-- list, which halves the work of reading it; at its end the number of doorbells sent, the last generation ('' if there
-- is none) and the time in ms.
local queue, bells = ARGV[1], tonumber(ARGV[2])
local most_turns, most_bytes, most_age, most_owned =
  tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local generation = raise_generation(ARGV[7], '')
local sent = tonumber(number_of(ARGV[8]) or '')
local n = tonumber(ARGV[9])
local first_bell = 10 + n * 8
local now = now_ms()
local stamp = whole(now)
local was_delayed = sent and now - sent >= MAX_ACCEPT_MS

local turns = redis.call('ZCARD', INDEX)
local bytes = tonumber(redis.call('HGET', COUNT, 'bytes') or 0)
-- A count, not the oldest turn itself: an agent's Redis user cannot list job ids (wire/redis/acl.py).
local is_late = redis.call('ZCOUNT', INDEX, '-inf', '(' .. whole(now - most_age)) > 0

local function refusal(owner, size)
  if turns >= most_turns then return 2, turns end
  if bytes + size > most_bytes then return 3, bytes end
  if is_late then return 4, most_age end
  local owned = redis.call('ZCARD', PENDING .. owner)
  if owned >= most_owned then return 5, owned end
  return 0, 0
end

local moved = {}  -- by namespace; false: it is served here
local function moved_to(owner)
  local namespace = namespace_of(owner)
  if moved[namespace] == nil then moved[namespace] = redis.call('GET', MOVED .. namespace) end
  return moved[namespace]
end

local answers, accepted = {}, {}
for i = 1, n do
  local at = 10 + (i - 1) * 8
  local job, owner, hash, payload = ARGV[at], ARGV[at + 1], ARGV[at + 6], ARGV[at + 7]
  local known = redis.call('HMGET', TURN .. job, 'base', 'hash')
  local code, value = 0, 0
  if moved_to(owner) then
    code, value = 7, moved_to(owner)
  elseif known[1] then
    code, value = (known[2] or hash) ~= hash and 6 or 1, tonumber(known[1])
  elseif was_stored_with_other_content(job, generation, hash) then
    code = 6
  else
    code, value = refusal(owner, #payload)
  end
  if code == 0 then
    local from
    value, from = place(owner, ARGV[at + 2], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), now)
    local base, given = whole(value), ARGV[at + 5]
    local recalled = number_of(string.match(given, '^<(%d+)$'))
    if string.sub(given, 1, 1) == '<' then
      given = recalled and generation ~= '' and is_less(recalled, generation) and recalled or ''
    end
    redis.call('HSET', TURN .. job, 'payload', payload, 'owner', owner, 'base', base, 'at', stamp, 'size', #payload,
      'generation', given ~= '' and given or generation, 'from', from)
    if hash ~= '' then redis.call('HSET', TURN .. job, 'hash', hash) end
    if recalled then redis.call('HSET', TURN .. job, 'under', generation) end
    if was_delayed then redis.call('HSET', TURN .. job, 'sent', whole(sent)) end
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
  if rung == 0 and room > 0 then  -- only turns without a doorbell are new: any doorbell means "there is work"
    redis.call('LPUSH', queue, ARGV[first_bell])
    rung = 1
  end
end
answers[2 * n + 1], answers[2 * n + 2], answers[2 * n + 3] = rung, generation, now
return answers
