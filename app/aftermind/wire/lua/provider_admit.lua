-- May a provider be asked now? Takes the call's place in the budgets where it may.
-- ARGV  1 provider, 2 requests a minute, 3 tokens a minute (0: no budget), 4 tokens of this call,
--       5 ms between two calls that may find out early how it is, while the breaker is open (0: this one may not)
-- Returns {0, ''}, or {ms to wait, 'budget' | 'breaker' | 'limited' | 'refused'}: then nothing was taken.
local key, now = PROVIDER .. ARGV[1], now_ms()
local found = redis.call('HMGET', key, 'open', 'why', 'requests', 'tokens', 'at', 'probe')
local open_until, every = tonumber(found[1] or 0), tonumber(ARGV[5])
local is_early = every > 0 and open_until > now and found[2] == 'breaker' and tonumber(found[6] or 0) <= now
if open_until > now and not is_early then return {whole(open_until - now), found[2] or 'breaker'} end
if open_until > 0 and tonumber(found[6] or 0) > now then
  -- Another call is checking the provider; it may be available again at any moment.
  return {whole(math.min(tonumber(found[6]) - now, 2000)), found[2] or 'breaker'}
end

-- Buckets of one minute's size, full at first; a call larger than the bucket is admitted when the bucket is full.
local elapsed = now - tonumber(found[5] or 0)
local function refilled(limit, left)
  return math.min(limit, tonumber(left or limit) + elapsed * limit / 60000)
end
local wants = {{tonumber(ARGV[2]), found[3], 1}, {tonumber(ARGV[3]), found[4], tonumber(ARGV[4])}}
local left, wait = {}, 0
for i, want in ipairs(wants) do
  local limit, needs = want[1], math.min(want[3], want[1])
  if limit > 0 then
    left[i] = refilled(limit, want[2])
    if left[i] < needs then wait = math.max(wait, math.ceil((needs - left[i]) * 60000 / limit)) end
    left[i] = left[i] - needs
  end
end
if wait > 0 then return {wait, 'budget'} end
redis.call('HSET', key, 'requests', tostring(left[1] or 0), 'tokens', tostring(left[2] or 0), 'at', whole(now))
if open_until > 0 then redis.call('HSET', key, 'probe', whole(now + (is_early and every or PROBE_MS))) end
redis.call('EXPIRE', key, PROVIDER_SECONDS)
redis.call('SADD', PROVIDERS, ARGV[1])
redis.call('EXPIRE', PROVIDERS, PROVIDER_SECONDS)
return {0, ''}
