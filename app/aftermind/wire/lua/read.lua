-- What a recall needs before it reads the database, in one moment.
-- ARGV  1 owner, 2 most turns, 3 how many of the newest to pass over
-- Returns {epoch, watermark, turns of the owner in all, {base, payload, generation, from, base, ...} newest first,
--          ms of Redis's clock, ms for which replicas may be read under watermarks, last generation};
--          generation and from as claim.lua has them.
local turns = {}
local most, first = tonumber(ARGV[2]), tonumber(ARGV[3])
if most > 0 then
  for _, job in ipairs(redis.call('ZREVRANGE', PENDING .. ARGV[1], first, first + most - 1)) do
    local turn = redis.call('HMGET', TURN .. job, 'base', 'payload', 'generation', 'from')
    for _, part in ipairs({turn[1], turn[2], resolved(turn[3]), turn[4]}) do turns[#turns + 1] = part end
  end
end
local marks = redis.call('MGET', EPOCH, WATERMARK .. ARGV[1], TRUSTED .. namespace_of(ARGV[1]))
local now = now_ms()
return {marks[1], marks[2], redis.call('ZCARD', PENDING .. ARGV[1]), turns, now, trust_left(marks[3], now),
  redis.call('HGET', GENERATION, 'last')}
