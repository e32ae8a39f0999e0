-- size: counts the tasks that could be dequeued now: queued, due again, or left by a worker whose lock expired.
--
-- ARGV    now, '1' to count those still delayed as well
-- Returns the number.

local now = clock(ARGV[1])
local ready = redis.call('ZCARD', queue) + redis.call('ZCOUNT', in_flight, '-inf', now)
if ARGV[2] == '1' then return ready + redis.call('ZCARD', retry) end
return ready + redis.call('ZCOUNT', retry, '-inf', now)
