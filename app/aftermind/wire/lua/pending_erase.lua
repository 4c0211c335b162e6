-- An erasure arrives: raise the generation, and remove turns that it covers, also those that a worker holds: its
-- transaction meets the tombstone.
-- ARGV  1 owner, 2 generation of the erasure, 3 what is forgotten: 'all' of the owner, 'session' or 'some', 4 the session,
--       then jobs
-- Returns the jobs removed.
local owner = ARGV[1]
raise_generation(ARGV[2], '')
local removed = {}
for i = 5, #ARGV do
  if redis.call('HGET', TURN .. ARGV[i], 'owner') == owner and remove(ARGV[i]) == 1 then
    removed[#removed + 1] = ARGV[i]
  end
end
-- Turns that are accepted from now on start a new count, unless a pending turn must precede them.
if redis.call('EXISTS', PENDING .. owner) == 0 then
  if ARGV[3] == 'all' then
    redis.call('DEL', HIGH .. owner)
    redis.call('DEL', COUNTED_FROM .. owner)
  end
  if ARGV[3] == 'session' then
    redis.call('HDEL', HIGH .. owner, ARGV[4])
    redis.call('HDEL', COUNTED_FROM .. owner, ARGV[4])
  end
end
return removed
