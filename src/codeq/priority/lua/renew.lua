-- renew: extends the lock of a task to the full time from now.
--
-- KEYS    9 its lock
-- ARGV    now, worker, fencing number or '', id, lock ms
-- Returns 1, or the lock's value ('' if nobody holds it) if it is not this worker's.

local now, id, lock, lock_ms = clock(ARGV[1]), ARGV[4], KEYS[LOCKS + 1], ARGV[5]
local value = redis.call('GET', lock)
if not is_own(value, id, now) then return holder(lock, id, now) or '' end
write_when_full()
redis.call('SET', lock, value, 'PX', lock_ms)
redis.call('ZADD', in_flight, now + lock_ms, id)
return 1
