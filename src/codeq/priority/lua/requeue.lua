-- requeue: gives up the lock of a task, which is ready again after a delay, behind those enqueued until then.
--
-- KEYS    9 its lock
-- ARGV    now, worker, fencing number or '', id, delay ms, priority or '' to keep it
-- Returns 1, or the lock's value ('' if nobody holds it) if it is not this worker's.

local now, id, lock = clock(ARGV[1]), ARGV[4], KEYS[LOCKS + 1]
local delay, priority = tonumber(ARGV[5]), tonumber(ARGV[6])
if not is_own(redis.call('GET', lock), id, now) then return holder(lock, id, now) or '' end
write_when_full()

local record = load(id, now)
record.order = redis.call('INCR', sequence)
record.score = score_of(priority or 100 - math.floor(record.score / BAND), now + delay)
save(id, record)
if delay > 0 then
  redis.call('ZADD', retry, now + delay, id)
else
  redis.call('ZADD', queue, record.score, id)
end
end_flight(lock, id) -- last, so that an error cannot lose the task
ring(id) -- also for a delay: who waits then knows until when
return 1
