-- complete: forgets a task that is done, with its lock, its flight and its record.
--
-- KEYS    9 its lock
-- ARGV    now, worker, fencing number or '', id
-- Returns 1, or the lock's value ('' if nobody holds it) if it is not this worker's.

local now, id, lock = clock(ARGV[1]), ARGV[4], KEYS[LOCKS + 1]
if not is_own(redis.call('GET', lock), id, now) then return holder(lock, id, now) or '' end
redis.call('HDEL', records, id)
end_flight(lock, id)
return 1
