-- Deletes bodies that were written before a script that never ran, so that they have no task.
--
-- KEYS    1 bodies that were written beside a script, 2 records, 3 bodies
-- ARGV    1 written before this time, 2 bodies at most
-- Returns how many were deleted
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', '0', ARGV[2])
local deleted = 0
for _, id in ipairs(ids) do
  if redis.call('HEXISTS', KEYS[2], id) == 0 then
    deleted = deleted + redis.call('HDEL', KEYS[3], id)
  end
  redis.call('ZREM', KEYS[1], id)
end
return deleted
