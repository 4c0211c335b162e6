-- Renew leases.
-- ARGV  1 token, 2 ms of lease, then jobs
-- Returns the jobs whose lease still is the token's.
local until_ms = whole(now_ms() + tonumber(ARGV[2]))
local held = {}
for i = 3, #ARGV do
  if redis.call('HGET', TURN .. ARGV[i], 'token') == ARGV[1] then
    redis.call('ZADD', LEASED, 'XX', until_ms, ARGV[i])
    held[#held + 1] = ARGV[i]
  end
end
return held
