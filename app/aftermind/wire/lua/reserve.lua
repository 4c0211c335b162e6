-- Places in the order of their sessions for turns that Postgres accepts.
-- ARGV  for each turn: owner, session, base, messages
-- Returns for each: the base it gets, where the counting of its session began.
local now, places = now_ms(), {}
for i = 1, #ARGV, 4 do
  local base, from = place(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), now)
  places[#places + 1] = whole(base)
  places[#places + 1] = from
end
return places
