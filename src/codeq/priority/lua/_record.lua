-- The keys, the clock and the record of a task. The loader puts this before every script.
--
-- KEYS 1 to 8 are always these, in the order of keys.py; the keys of locks follow. A record is "<order> <attempts>
-- <fencing number> <score>": `order` decides between equal scores, and the score is where the task stood, or will stand.

local queue, retry, in_flight, records, sequence, wake, corrupted, dead = unpack(KEYS, 1, 8)
local LOCKS = 8 -- KEYS[LOCKS + 1] is the first lock
local BAND = 1e13 -- one priority in scores; more than any time in milliseconds until the year 2286
local SCORES_END = 101 * BAND -- every score of a task is below
local NORMAL = 50
local MOVED_MAX = 64 -- tasks that one call promotes or recovers, so that no call is long
local WAKE_MAX = 64 -- wake-ups kept for waiting calls; one too many costs a look, one too few at most a second

local function clock(injected_ms)
  if injected_ms ~= '' then return tonumber(injected_ms) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function score_of(priority, ms) return (100 - priority) * BAND + ms end

local function parse(text, now)
  local order, attempts, fencing, score = string.match(text or '', '^(%d+) (%d+) (%d+) (%S+)$')
  return {
    order = order or '0', attempts = attempts or '0', fencing = fencing or '0',
    score = tonumber(score) or score_of(NORMAL, now), -- a member that another program added has no record
  }
end

local function load(id, now) return parse(redis.call('HGET', records, id), now) end

local function save(id, record)
  local score = string.format('%.17g', record.score)
  redis.call('HSET', records, id, table.concat({record.order, record.attempts, record.fencing, score}, ' '))
end

-- Wakes a call that waits. Who waits for nothing leaves the list full, so it is kept short.
-- If the key is no list, an empty dequeue deletes it; until then who waits looks once a second.
local function ring(id)
  local length = redis.pcall('RPUSH', wake, id)
  if type(length) == 'number' and length > WAKE_MAX then redis.call('LPOP', wake) end
end

-- Lets a worker go on when Redis has no memory left: it refuses only scripts whose first write takes memory, and this
-- one takes none. Without it nobody could work the queue off, and so nothing would ever become free.
local function write_when_full() redis.call('PERSIST', sequence) end

-- Moves the members that are due from a set of times to the queue, each to its score.
local function move_due(times, now)
  local due = redis.call('ZRANGEBYSCORE', times, '-inf', now, 'LIMIT', 0, MOVED_MAX)
  for _, id in ipairs(due) do
    redis.call('ZADD', queue, load(id, now).score, id) -- first, so that an error cannot lose the task
    redis.call('ZREM', times, id)
    ring(id)
  end
  return due
end

-- Whether a worker of ours holds the task: the record of flight decides, for it goes by the same clock as everything.
local function is_in_flight(id, now)
  local until_ms = redis.call('ZSCORE', in_flight, id)
  return until_ms and tonumber(until_ms) > now
end

-- The value of the lock if somebody holds it. A lock that outlived its flight by a moment is nobody's, and a key that is
-- no string is somebody's: it must not stop the queue.
local function holder(lock, id, now)
  local value = redis.pcall('GET', lock)
  if type(value) == 'table' then return 'not a string' end
  if not value or is_in_flight(id, now) then return value end
  local fencing = load(id, now).fencing
  if fencing ~= '0' and string.sub(value, -#fencing - 1) == ':' .. fencing then return false end
  return value
end

-- Whether the lock is this worker's, by its fencing number or, if none is given, by its name.
local function is_own(value, id, now)
  local worker, fencing = ARGV[2], ARGV[3]
  if not value or not is_in_flight(id, now) then return false end
  if fencing ~= '' then return value == worker .. ':' .. fencing end
  return string.match(value, '^(.*):%d+$') == worker
end

local function end_flight(lock, id)
  redis.call('DEL', lock)
  redis.call('ZREM', in_flight, id)
end
