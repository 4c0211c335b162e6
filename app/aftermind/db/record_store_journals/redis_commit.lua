-- Write rows and the next state, if the state is the expected one.
-- KEYS  1 state, 2 versions, 3 erasures, then of each partition: rows, order, changed
-- ARGV  1 expected version, 2 expected holder, 3 version, 4 holder, 5 the version up to which deleted fields are forgotten,
--       6 JSON: of each partition its name, its fields with rows (null deletes), and whether it is erased
-- Returns the process that waits, '' for none; nil where the state is another one.
local state = redis.call('HMGET', KEYS[1], 'version', 'holder', 'waiting')
if (state[1] or '0') ~= ARGV[1] or (state[2] or '') ~= ARGV[2] then return false end
local waiting = state[3] or ''
if waiting == ARGV[4] then
  waiting = ''
  redis.call('HDEL', KEYS[1], 'waiting')
end
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'holder', ARGV[4])
for number, partition in ipairs(cjson.decode(ARGV[6])) do
  local name, changes, is_erased = partition[1], partition[2], partition[3]
  local rows, order, changed = KEYS[3 * number + 1], KEYS[3 * number + 2], KEYS[3 * number + 3]
  for _, change in ipairs(changes) do
    local field, row = change[1], change[2]
    if row == cjson.null then
      redis.call('HDEL', rows, field)
      redis.call('HDEL', order, field)
    else
      redis.call('HSET', rows, field, row)
      if redis.call('HEXISTS', order, field) == 0 then
        redis.call('HSET', order, field, redis.call('HINCRBY', KEYS[1], 'places', 1))
      end
    end
    redis.call('ZADD', changed, ARGV[3], field)
  end
  redis.call('ZADD', KEYS[2], ARGV[3], name)
  if is_erased then
    redis.call('DEL', changed)
    redis.call('ZADD', KEYS[3], ARGV[3], name)
  else
    redis.call('ZREMRANGEBYSCORE', changed, '-inf', ARGV[5])
  end
end
return waiting
