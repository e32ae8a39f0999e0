-- Makes a process the sweeper of a shard, for a while, unless another process is.
--
-- KEYS    1 sweeper
-- ARGV    1 the process, 2 milliseconds, 0 to stop being it
-- Returns 1 if the process is the sweeper
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
