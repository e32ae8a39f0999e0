-- dequeue: pops the best ready task, locks it and records its flight, all at once.
--
-- KEYS    9.. the locks of the tasks that the caller expects to be first, since every key must be declared
-- ARGV    now, worker, lock ms, age ms or '', attempts at most or '', how many next ids to name, the ids of those tasks
-- Returns {'claimed', id, score, attempts, fencing number, next ids, notes}
--         {'again', next ids, notes} if the best task is none of those: call again with its lock among the keys
--         {'empty', ms until something may be ready or -1, notes}
-- Notes   'recovered', 'corrupted', 'parked', 'duplicate' or 'dead', each followed by the member it happened to.
-- Cost    bounded: at most MOVED_MAX tasks are promoted and recovered, EXAMINED_MAX looked at, TIES_MAX compared.

local EXAMINED_MAX, TIES_MAX, ARGUMENTS = 32, 512, 6

local now, worker, lock_ms = clock(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local age_ms, attempts_max, ahead = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local locks, notes = {}, {}
for place = ARGUMENTS + 1, #ARGV do locks[ARGV[place]] = KEYS[LOCKS + place - ARGUMENTS] end

local function note(what, id)
  notes[#notes + 1] = what
  notes[#notes + 1] = id
end

local function is_well_formed(id, score)
  return #id <= 256 and string.find(id, '^%w[%w%.%-_:/@#=+,~]*$') and score >= 0 and score < SCORES_END
end

-- The best score with ageing: a task that waited for age_ms counts as one of the highest priority. The oldest of each
-- priority in use is compared, from the highest priority to the lowest.
local function aged(score)
  local best = {rank = math.huge, score = score}
  while score do
    local number = tonumber(score)
    if number < 0 or number >= SCORES_END then return score end
    local enqueued = number % BAND
    local rank = now - enqueued >= age_ms and enqueued or number
    if rank < best.rank then best = {rank = rank, score = score} end
    local lower = (math.floor(number / BAND) + 1) * BAND
    score = redis.call('ZRANGEBYSCORE', queue, lower, SCORES_END, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  return best.score
end

-- Sorts members with equal scores by arrival. Returns the record of the first.
local function sort(ids)
  local texts, order = {}, {}
  for place, text in ipairs(redis.call('HMGET', records, unpack(ids))) do
    texts[ids[place]] = text
    order[ids[place]] = tonumber(string.match(text or '', '^%d+')) or 0
  end
  table.sort(ids, function(a, b) if order[a] == order[b] then return a < b end return order[a] < order[b] end)
  return texts[ids[1]]
end

-- The best score, its members in order of arrival, the record of the first of them, and some members that follow.
local function best()
  local found = redis.call('ZRANGE', queue, 0, ahead - 1, 'WITHSCORES')
  if #found == 0 then return nil end
  local score, ids, after = age_ms and aged(found[2]) or found[2], {}, {}
  for place = 1, #found, 2 do
    local list = found[place + 1] == score and ids or after
    list[#list + 1] = found[place]
  end
  if found[2] ~= score or #ids == ahead then
    ids = redis.call('ZRANGEBYSCORE', queue, score, score, 'LIMIT', 0, TIES_MAX)
  end
  local text = sort(ids)
  return score, ids, text, after
end

local function next_ids(ids, first, after)
  local found = {unpack(ids, first, math.min(#ids, first + ahead - 1))}
  for place = 1, math.min(#after, ahead - #found) do found[#found + 1] = after[place] end
  return found
end

local function claim(id, score, record)
  record.attempts, record.score, record.fencing = record.attempts + 1, score, redis.call('INCR', sequence)
  redis.call('ZADD', in_flight, now + lock_ms, id)
  redis.call('SET', locks[id], worker .. ':' .. record.fencing, 'PX', lock_ms)
  save(id, record)
  redis.call('ZREM', queue, id)
end

-- Sets a task that cannot be served aside, so that it never stands before the others.
local function set_aside(id, score, record, held)
  if not is_well_formed(id, score) then
    redis.call('ZADD', corrupted, score, id)
    note('corrupted', id)
  elseif redis.call('ZSCORE', in_flight, id) then -- added by another program while it runs: it runs once
    note('duplicate', id)
  elseif held then
    record.score = score
    save(id, record)
    local left = redis.call('PTTL', locks[id])
    redis.call('ZADD', retry, now + (left > 0 and left or lock_ms), id)
    note('parked', id)
  else
    redis.call('ZADD', dead, score, id)
    note('dead', id)
  end
  redis.call('ZREM', queue, id)
end

write_when_full()
move_due(retry, now)
for _, id in ipairs(move_due(in_flight, now)) do note('recovered', id) end

for _ = 1, EXAMINED_MAX do
  local text, ids, stored, after = best()
  if not text then break end
  local id, score, record = ids[1], tonumber(text), parse(stored, now)
  local is_task = is_well_formed(id, score)
  if is_task and not locks[id] then return {'again', next_ids(ids, 1, after), notes} end
  local held = is_task and holder(locks[id], id, now)
  if is_task and not held and not (attempts_max and tonumber(record.attempts) >= attempts_max) then
    claim(id, score, record)
    return {'claimed', id, text, record.attempts, record.fencing, next_ids(ids, 2, after), notes}
  end
  set_aside(id, score, record, held)
end

if redis.call('ZCARD', queue) > 0 then return {'again', {}, notes} end
redis.call('DEL', wake)
local soonest = -1
for _, times in ipairs({retry, in_flight}) do
  local first = redis.call('ZRANGE', times, 0, 0, 'WITHSCORES')[2]
  local left = first and math.max(1, math.ceil(first - now))
  if left and (soonest < 0 or left < soonest) then soonest = left end
end
return {'empty', soonest, notes}
