-- After COMMIT: raise the owners' watermarks and forget the turns; both in one step, so that a recall which no longer
-- sees a turn here is sent to where it is stored.
-- ARGV  1 system, 2 timeline, 3 lsn (all '' where no replica can lag), then jobs
-- Returns {turns removed, turns that could be claimed now}. Not fenced: what is committed is stored, whoever did it.
local raised = {}
local removed = 0
for i = 4, #ARGV do
  local owner = redis.call('HGET', TURN .. ARGV[i], 'owner')
  if owner and ARGV[1] ~= '' and not raised[owner] then
    raise_watermark(owner, ARGV[1], ARGV[2], ARGV[3])
    raised[owner] = true
  end
  removed = removed + remove(ARGV[i])
end
return {removed, runnable()}
