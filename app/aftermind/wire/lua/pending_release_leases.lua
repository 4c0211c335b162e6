-- Release turns without storing them.
-- ARGV  1 token, 2 ms until they may be claimed again (0: now), 3 '1': the attempt counts, '0': it does not, '2': nor
-- does the loss of a lease that has expired since; then jobs
-- Returns the number of released turns; turns with another lease are skipped.
local token, wait, counts = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local now = now_ms()
local given = 0
for i = 4, #ARGV do
  local job = ARGV[i]
  local turn = redis.call('HMGET', TURN .. job, 'token', 'owner', 'base', 'lost_token')
  if turn[1] == token then
    redis.call('HDEL', TURN .. job, 'token')
    if not counts then redis.call('HINCRBY', TURN .. job, 'attempts', -1) end
    if wait > 0 then
      redis.call('ZADD', LEASED, whole(now + wait), job)
    else
      redis.call('ZREM', LEASED, job)
      make_ready(job, turn[2], turn[3])
    end
    given = given + 1
  elseif ARGV[3] == '2' and turn[4] == token then
    redis.call('HINCRBY', TURN .. job, 'lost', -1)
    redis.call('HINCRBY', TURN .. job, 'attempts', -1)
    redis.call('HDEL', TURN .. job, 'lost_token')
  end
end
return given
