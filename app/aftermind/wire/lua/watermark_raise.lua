-- Raise watermarks after a COMMIT that was not a turn's.
-- ARGV  1 system, 2 timeline, 3 lsn, then owners
for i = 4, #ARGV do
  raise_watermark(ARGV[i], ARGV[1], ARGV[2], ARGV[3])
end
return #ARGV - 3
