-- Push doorbells while fewer than the maximum wait.
-- ARGV  1 queue, 2 maximum, then messages
-- Returns the number pushed.
local room = tonumber(ARGV[2]) - redis.call('LLEN', ARGV[1])
local rung = 0
for i = 3, #ARGV do
  if rung >= room then break end
  redis.call('LPUSH', ARGV[1], ARGV[i])
  rung = rung + 1
end
return rung
