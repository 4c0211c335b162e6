-- Remove an owner's turns, also those that a worker holds: its transaction meets the tombstone.
-- ARGV  1 owner, 2 '1': the whole owner is forgotten, then jobs
-- Returns the number removed.
local removed = 0
for i = 3, #ARGV do
  if redis.call('HGET', TURN .. ARGV[i], 'owner') == ARGV[1] then removed = removed + remove(ARGV[i]) end
end
if ARGV[2] == '1' then redis.call('DEL', HIGH .. ARGV[1]) end
return removed
