-- What changed in a partition after a version.
-- KEYS  1 rows, 2 order, 3 changed
-- ARGV  1 version
-- Returns field, row and place of each; nil for the last two where it was deleted.
local found = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. ARGV[1], '+inf')
for number, field in ipairs(found) do
  found[number] = {field, redis.call('HGET', KEYS[1], field), redis.call('HGET', KEYS[2], field)}
end
return found
