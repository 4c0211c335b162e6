-- Places in the order of their sessions for turns that Postgres accepts.
-- ARGV  for each turn: owner, session, base, messages, job, hash of the content ('': without a key)
-- Returns for each: the base it gets, where the counting of its session began, 1 if its key belongs to other content that
-- is pending here, or was some seconds ago (else 0).
local now, places = now_ms(), {}
local generation = redis.call('HGET', GENERATION, 'last') or ''
for i = 1, #ARGV, 6 do
  local base, from = place(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), now)
  places[#places + 1] = whole(base)
  places[#places + 1] = from
  local hash = ARGV[i + 5]
  local known = hash ~= '' and redis.call('HGET', TURN .. ARGV[i + 4], 'hash')
  local is_other = (known and known ~= hash) or was_stored_with_other_content(ARGV[i + 4], generation, hash)
  places[#places + 1] = is_other and 1 or 0
end
return places
