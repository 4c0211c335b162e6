-- How a call to a provider ended.
-- ARGV  1 provider, 2 outcome (ok, failed, limited, refused), 3 ms that the provider asks to wait (0: it does not say),
--       4 failures in a row that open the breaker, 5 ms that it is open at first, 6 at most, 7 ms for a refused key
-- Returns ms for which the provider is not asked from now on, 0 where it may be.
local key, outcome, now = PROVIDER .. ARGV[1], ARGV[2], now_ms()
if outcome == 'ok' then
  redis.call('HDEL', key, 'failures', 'open', 'opened', 'why', 'probe')
  return 0
end
local wait, why = 0, 'breaker'
if outcome == 'refused' then
  wait, why = tonumber(ARGV[7]), 'refused'
elseif outcome == 'limited' and tonumber(ARGV[3]) > 0 then
  wait, why = tonumber(ARGV[3]), 'limited'
elseif tonumber(redis.call('HGET', key, 'open') or 0) > now then
  return 0  -- it was on its way when the breaker opened, or finds out early: no reason to wait twice as long
else
  local failures = redis.call('HINCRBY', key, 'failures', 1)
  if failures >= tonumber(ARGV[4]) then
    local opened = redis.call('HINCRBY', key, 'opened', 1)
    wait = math.min(tonumber(ARGV[6]), tonumber(ARGV[5]) * 2 ^ math.min(opened - 1, 20))
    if outcome == 'limited' then why = 'limited' end
  end
end
if wait > 0 then
  local open_until = math.max(now + wait, tonumber(redis.call('HGET', key, 'open') or 0))
  redis.call('HSET', key, 'open', whole(open_until), 'why', why)
  redis.call('HDEL', key, 'probe')
end
redis.call('EXPIRE', key, PROVIDER_SECONDS)
redis.call('SADD', PROVIDERS, ARGV[1])
redis.call('EXPIRE', PROVIDERS, PROVIDER_SECONDS)
return whole(wait)
