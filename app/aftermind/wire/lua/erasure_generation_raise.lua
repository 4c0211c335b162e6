-- Raise the generation, and set the one of turns that were accepted here before any number arrived, if it is not set.
-- ARGV  1 generation ('': only read it), 2 that of those turns ('': leave it)
-- Returns {last, begun}, each nil if there is none.
raise_generation(ARGV[1], ARGV[2])
local found = redis.call('HMGET', GENERATION, 'last', 'begun')
return {number_of(found[1]) or false, number_of(found[2]) or false}
