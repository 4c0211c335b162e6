-- Record the keys that a process uses, as fingerprints, and remove processes that have not announced theirs for a long time.
-- ARGV  1 process, 2 fingerprints, 3 ms after which a silent process is removed
local now = now_ms()
redis.call('HSET', PROCESSES, ARGV[1], whole(now) .. ' ' .. ARGV[2])
local announced = redis.call('HGETALL', PROCESSES)
for i = 1, #announced, 2 do
  local at = string.match(announced[i + 1], '^(%d+) ')
  if not at or tonumber(at) < now - tonumber(ARGV[3]) then redis.call('HDEL', PROCESSES, announced[i]) end
end
redis.call('PEXPIRE', PROCESSES, ARGV[3])
return 1
