-- Release what a claim took whose answer never arrived.
-- ARGV  1 the token of the claim
-- Returns the number of turns. Leased turns are few: as many as workers hold, and those that were snoozed.
local given = 0
for _, job in ipairs(redis.call('ZRANGE', LEASED, 0, -1)) do
  local turn = redis.call('HMGET', TURN .. job, 'token', 'owner', 'base')
  if turn[1] == ARGV[1] then
    redis.call('HDEL', TURN .. job, 'token')
    redis.call('HINCRBY', TURN .. job, 'attempts', -1)
    redis.call('ZREM', LEASED, job)
    make_ready(job, turn[2], turn[3])
    given = given + 1
  end
end
return given
