-- Count a use within a window that begins with the first one.
-- ARGV  1 name of the limit and its subject, 2 length of the window in ms
-- Returns the number of uses in this window, this one included.
local count = redis.call('INCR', RATE .. ARGV[1])
if count == 1 then redis.call('PEXPIRE', RATE .. ARGV[1], ARGV[2]) end
return count
