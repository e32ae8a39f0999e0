-- release: gives up the lock of a task, which returns to its old place in the queue.
--
-- KEYS    9 its lock
-- ARGV    now, worker, fencing number or '', id, '1' to release whoever holds it
-- Returns 1; 0 if nobody holds the lock; or the lock's value if it is another worker's.

local now, id, lock = clock(ARGV[1]), ARGV[4], KEYS[LOCKS + 1]
local value = holder(lock, id, now)
if not value then return 0 end
if ARGV[5] ~= '1' and not is_own(value, id, now) then return value end
local was_in_flight = redis.call('ZSCORE', in_flight, id)
end_flight(lock, id)
if was_in_flight then
  redis.call('ZADD', queue, load(id, now).score, id)
  ring(id)
end
return 1
