-- Raise the generation; what was accepted here before anybody told counts as accepted under the first that arrives.
-- ARGV  1 generation ('': read it alone)
-- Returns {last, begun}, each nil where nobody has told.
raise_generation(ARGV[1], ARGV[1])
return redis.call('HMGET', GENERATION, 'last', 'begun')
