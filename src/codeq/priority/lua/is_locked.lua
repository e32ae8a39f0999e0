-- is_locked: says whether somebody holds the lock of a task.
--
-- KEYS    9 its lock
-- ARGV    now, id
-- Returns 1 or 0.

return holder(KEYS[LOCKS + 1], ARGV[2], clock(ARGV[1])) and 1 or 0
