-- is_persistent: says whether Redis writes an append-only file, without which a crash loses what was queued.
--
-- ARGV    none
-- Returns 1 or 0.

return string.find(redis.call('INFO', 'persistence'), 'aof_enabled:1', 1, true) and 1 or 0
