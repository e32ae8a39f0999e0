-- enqueue: adds a task that is not there yet; of one that is there, raises the priority at most.
--
-- ARGV    now, id, priority
-- Returns 1 if it was added, 0 if it was queued, delayed or in flight already. A task that was there keeps its time, and
--         so its place among those of its priority; if it is delayed or in flight, the priority counts when it returns.
--         A dead task is added anew.

local now, id, priority = clock(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local known = redis.call('HGET', records, id)
local record = parse(known, now)

local function raised(score) return math.min(score, score_of(priority, score % BAND)) end

local queued = tonumber(redis.call('ZSCORE', queue, id) or '-1')
if queued >= 0 and queued < SCORES_END then -- a score that another program got wrong is replaced
  redis.call('ZADD', queue, raised(queued), id)
  return 0
end
if known then
  if redis.call('ZSCORE', retry, id) or redis.call('ZSCORE', in_flight, id) then
    record.score = raised(record.score)
    save(id, record)
    return 0
  end
  redis.call('ZREM', dead, id)
end

local score, order = score_of(priority, now), redis.call('INCR', sequence)
redis.call('ZADD', queue, score, id)
save(id, {order = order, attempts = 0, fencing = record.fencing, score = score})
ring(id)
return 1
