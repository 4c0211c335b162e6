-- What a recall needs before it reads the database, in one moment.
-- ARGV  1 owner, 2 most turns, 3 how many of the newest to pass over
-- Returns {epoch, watermark, turns of the owner in all, {base, payload, generation, from, base, ...} newest first,
--          ms of Redis's clock, ms for which replicas may be read under watermarks, last generation,
--          the database that the tenant has moved to, or nil};
--          generation and from as pending_claim.lua has them.
local turns = {}
local most, first = tonumber(ARGV[2]), tonumber(ARGV[3])
if most > 0 then
  for _, job in ipairs(redis.call('ZREVRANGE', PENDING .. ARGV[1], first, first + most - 1)) do
    -- A key by hand may be of another type.
    local turn = redis.pcall('HMGET', TURN .. job, 'base', 'payload', 'generation', 'from')
    for _, part in ipairs({turn[1] or false, turn[2] or false, resolved(turn[3]), turn[4] or false}) do
      turns[#turns + 1] = part
    end
  end
end
-- One GET each: a Redis user's rights on these keys differ, so one command cannot name all of them (wire/redis/acl.py).
local namespace = namespace_of(ARGV[1])
local trusted = redis.call('GET', TRUSTED .. namespace)
local now = now_ms()
return {redis.call('GET', EPOCH), redis.call('GET', WATERMARK .. ARGV[1]), redis.call('ZCARD', PENDING .. ARGV[1]),
  turns, now, trust_left(trusted, now), number_of(redis.call('HGET', GENERATION, 'last')) or false,
  redis.call('GET', MOVED .. namespace)}
