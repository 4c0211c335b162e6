-- Raise watermarks that had not been raised, then let replicas of their namespace be read under watermarks.
-- ARGV  1 namespace, 2 ms of Redis's clock before the primary was asked which those are, 3 system, 4 timeline, 5 lsn,
--       then owners
-- Returns 1 where replicas are trusted now. The time is absolute: a call that was held up sets nothing.
for i = 6, #ARGV do
  raise_watermark(ARGV[i], ARGV[3], ARGV[4], ARGV[5])
end
local now, from = now_ms(), tonumber(ARGV[2])
local left = from + TRUST_MS - now
if now < from or left <= 0 then return 0 end
if trust_left(redis.call('GET', TRUSTED .. ARGV[1]), now) < left then
  redis.call('SET', TRUSTED .. ARGV[1], whole(from) .. ' ' .. whole(from + TRUST_MS), 'PX', whole(left))
end
return 1
