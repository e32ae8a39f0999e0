-- release: gives up the lock of a task, which returns to its old place in the queue.
--
-- KEYS    9 its lock
-- ARGV    now, worker, fencing number or '', id, '1' to release whoever holds it, '1' if the task never reached a worker
-- Returns 1; 0 if nobody holds the lock; or the lock's value if it is another worker's.

local now, id, lock = clock(ARGV[1]), ARGV[4], KEYS[LOCKS + 1]
local value = holder(lock, id, now)
if not value then return 0 end
if ARGV[5] ~= '1' and not is_own(value, id, now) then return value end
write_when_full()
if redis.call('ZSCORE', in_flight, id) then
  local record = load(id, now)
  if ARGV[6] == '1' then record.attempts = record.attempts - 1 end
  save(id, record)
  redis.call('ZADD', queue, record.score, id)
  ring(id)
end
end_flight(lock, id)
return 1
