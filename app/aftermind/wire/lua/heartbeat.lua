-- Renew leases.
-- ARGV  1 token, 2 ms of lease, then jobs
-- Returns the jobs whose lease still is the token's, and those that are gone: stored, and nobody else's to store again.
local until_ms = whole(now_ms() + tonumber(ARGV[2]))
local held = {}
for i = 3, #ARGV do
  if redis.call('HGET', TURN .. ARGV[i], 'token') == ARGV[1] then
    redis.call('ZADD', LEASED, 'XX', until_ms, ARGV[i])
    held[#held + 1] = ARGV[i]
  elseif redis.call('EXISTS', TURN .. ARGV[i]) == 0 then
    held[#held + 1] = ARGV[i]
  end
end
return held
