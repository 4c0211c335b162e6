-- Record the outcome of a call to a provider.
-- ARGV  1 provider, 2 outcome (ok, failed, limited, refused), 3 ms of the provider's Retry-After (0: none), 4 failures
-- in a row that open the breaker, 5 ms that it is open at first, 6 at most, 7 ms for a refused key,
-- 8 name of the breaker of the provider's large calls
-- Returns ms for which the provider is paused from now on, 0 if it is not.
local key, outcome, now = PROVIDER .. ARGV[1], ARGV[2], now_ms()
if outcome == 'ok' then
  redis.call('HDEL', key, 'failures', 'open', 'opened', 'why', 'probe')
  redis.call('DEL', PROVIDER .. ARGV[8])
  return 0
end
local wait, why = 0, 'breaker'
if outcome == 'refused' then
  wait, why = tonumber(ARGV[7]), 'refused'
elseif outcome == 'limited' and tonumber(ARGV[3]) > 0 then
  wait, why = tonumber(ARGV[3]), 'limited'
elseif tonumber(redis.call('HGET', key, 'open') or 0) > now then
  return 0  -- the call started before the breaker opened, or is a probe: no reason to double the wait
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
