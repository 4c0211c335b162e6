-- After COMMIT: raise the owners' watermarks and remove the turns, in one step, so that a recall that no longer sees a
-- turn here reads it where it is stored.
-- ARGV  1 system, 2 timeline, 3 lsn (all '' if no replica can lag), 4 n, then n owners whose turns may be removed
-- already, then jobs
-- Returns {turns removed, turns that could be claimed now}. Not fenced: a committed turn is stored, whichever worker
-- stored it.
local raised = {}
local removed = 0
local function raise(owner)
  if owner and ARGV[1] ~= '' and not raised[owner] then
    raise_watermark(owner, ARGV[1], ARGV[2], ARGV[3])
    raised[owner] = true
  end
end
local first = 5 + tonumber(ARGV[4])
for i = 5, first - 1 do raise(ARGV[i]) end
for i = first, #ARGV do
  local turn = redis.call('HMGET', TURN .. ARGV[i], 'owner', 'hash', 'generation', 'under')
  raise(turn[1])
  if turn[2] and turn[3] then keep_hash(ARGV[i], turn[4] or turn[3], turn[2]) end
  removed = removed + remove(ARGV[i])
end
return {removed, runnable()}
