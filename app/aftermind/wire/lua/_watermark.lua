-- Put before the scripts that raise a watermark.

-- Never lower it: within one system a later timeline wins, within a timeline the higher LSN. Another system replaces it.
local function raise_watermark(owner, system, timeline, lsn)
  local key = WATERMARK .. owner
  local old = redis.call('GET', key)
  if old then
    local old_system, old_timeline, old_lsn = string.match(old, '^(%d+)/(%d+)/(%d+)$')
    if old_system == system then
      if is_less(timeline, old_timeline) then return end
      if timeline == old_timeline and is_less(lsn, old_lsn) then return end
    end
  end
  redis.call('SET', key, system .. '/' .. timeline .. '/' .. lsn, 'EX', WATERMARK_SECONDS)
end

-- For how many ms more replicas may be read under watermarks. 0: not now, also where the clock was set back.
local function trust_left(trusted, now)
  local from, to = string.match(trusted or '', '^(%d+) (%d+)$')
  if not from or now < tonumber(from) then return 0 end
  return math.max(tonumber(to) - now, 0)
end
