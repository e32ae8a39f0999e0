-- Leases ready tasks: the highest priority of all queues first, equal priorities in rotation. Nothing is decided here: the record
-- stays as it is, the arguments of the claim are appended to it, and every reader applies the claim itself.
--
-- KEYS    1 records, 2 bodies, 3 number, 4 events, 5 counts, 6 ready, 7 heads of leases, 8 the claim of this request id,
--         9 one that is never there; then for each queue twelve: its pending lists 0 to 9, delayed, leased
-- ARGV    1 tasks at most, 2 payload bytes at most, 3 entries read at most, 4 bytes of a body that is returned at most,
--         5 channel of moves, 6 shard (2 bytes), 7 milliseconds to remember the request id, or 0, 8 the only priority, or '',
--         9 '1' if the request is a further part of a claim, whose id is remembered beside the other parts and not looked up;
--         then for each queue five: command | its name in the heads | tasks it may have in progress, or -1
--         | arguments of the claim (MessagePack, without the last) | end of the lease
-- Returns the taken tasks as [record, body or false], and per queue [its priorities, next delayed, next lease]
--         A request id whose tasks are still leased to it returns them again, and nothing is taken.
-- Cost    reads at most ARGV[3] entries, whatever was cancelled before; then as `commit`.
local call, sub, insert, pack = redis.call, string.sub, table.insert, struct.pack
local left, bytes, entries_left = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if ARGV[7] ~= '0' and ARGV[9] == '' then
  local again, answers = call('GET', KEYS[8]) or '', {}
  for at = 1, #again, 24 do
    local record = call('HGET', KEYS[1], sub(again, at, at + 15))
    if record and sub(record, 1, 8) == sub(again, at + 16, at + 23) then
      insert(answers, { record, false })
    end
  end
  if #answers > 0 then
    return { answers, false }
  end
  call('DEL', KEYS[8])
end

local queues, fields = {}, {}
for place = 1, (#KEYS - 9) / 12 do
  local at, keys = 10 + (place - 1) * 5, 10 + (place - 1) * 12
  local queue = { command = ARGV[at], member = ARGV[at + 1], room = tonumber(ARGV[at + 2]), claim = ARGV[at + 3],
    lease = ARGV[at + 4], keys = keys, delayed = KEYS[keys + 10], leased = KEYS[keys + 11], taken = {}, pending = {} }
  if queue.room >= 0 then
    queue.room = math.max(0, queue.room - call('ZCARD', queue.leased))
  else
    queue.room = math.huge
  end
  queues[place] = queue
  for priority = 0, 9 do
    insert(fields, priority .. queue.command)
  end
end
for place, count in ipairs(call('HMGET', KEYS[5], unpack(fields))) do
  queues[math.floor((place - 1) / 10) + 1].pending[(place - 1) % 10] = tonumber(count or 0)
end

-- Takes entries from the front of a list. Those of tasks that have moved since are dropped.
local taken = {}
local function take(queue, priority, wanted)
  local key = KEYS[queue.keys + priority]
  local entries = call('LPOP', key, wanted)
  if not entries then
    return 0
  end
  local ids = {}
  for place, entry in ipairs(entries) do
    ids[place] = sub(entry, 9, 24)
  end
  local stored = call('HMGET', KEYS[1], unpack(ids))
  for place, entry in ipairs(entries) do
    if bytes <= 0 then
      for back = #entries, place, -1 do
        call('LPUSH', key, entries[back])
      end
      break
    end
    entries_left = entries_left - 1
    local record = stored[place]
    if record and sub(record, 1, 8) == sub(entry, 1, 8) then
      local size = struct.unpack('>I4', sub(entry, 25))
      bytes, left, queue.room = bytes - size, left - 1, queue.room - 1
      queue.taken[priority] = (queue.taken[priority] or 0) + 1
      insert(taken, { id = ids[place], queue = queue, before = record, size = size })
    end
  end
  return #entries
end

local lowest, highest = tonumber(ARGV[8]) or 0, tonumber(ARGV[8]) or 9
for priority = highest, lowest, -1 do
  local active = {}
  for _, queue in ipairs(queues) do
    if queue.pending[priority] > 0 then
      insert(active, queue)
    end
  end
  while #active > 0 and left > 0 and bytes > 0 and entries_left > 0 do
    local share, rest = math.max(1, math.floor(left / #active)), {}
    if #active > 1 then
      for place, queue in ipairs(active) do
        queue.place = place
      end
      table.sort(active, function(a, b)
        local of_a, of_b = a.taken[priority] or 0, b.taken[priority] or 0
        return of_a < of_b or (of_a == of_b and a.place < b.place)
      end)
    end
    for _, queue in ipairs(active) do
      local wanted = math.min(share, left, entries_left, queue.room)
      if wanted > 0 and bytes > 0 and take(queue, priority, wanted) == wanted then
        insert(rest, queue)
      end
    end
    active = rest
  end
end

local count, answers = #taken, {}
if count > 0 then
  local first = call('INCRBY', KEYS[3], count) - count + 1
  local puts, events, leases, small, ids, claimed = {}, {}, {}, {}, {}, {}
  for place, task in ipairs(taken) do
    local record = '\146' .. sub(task.before, 10) .. task.queue.claim .. '\207' .. sub(task.before, 1, 8)
    insert(puts, task.id)
    insert(puts, pack('>I8', first + place - 1) .. record)
    insert(events, record)
    insert(ids, task.id)
    insert(claimed, task.id .. pack('>I8', first + place - 1))
    answers[place] = { pack('>I8', first + place - 1) .. record, false }
    local of = leases[task.queue] or {}
    leases[task.queue] = of
    insert(of, task.queue.lease)
    insert(of, task.id)
    if task.size <= tonumber(ARGV[4]) then
      insert(small, place)
    end
  end
  call('HSET', KEYS[1], unpack(puts))
  for queue, values in pairs(leases) do
    call('ZADD', queue.leased, unpack(values))
    for priority, number in pairs(queue.taken) do
      local field = priority .. queue.command
      queue.pending[priority] = call('HINCRBY', KEYS[5], field, -number)
      if queue.pending[priority] == 0 then
        call('HDEL', KEYS[5], field)
        call('ZREM', KEYS[6], field)
      end
      call('HINCRBY', KEYS[5], 'r' .. queue.command, number)
    end
    local head = call('ZRANGE', queue.leased, 0, 0, 'WITHSCORES')
    call('ZADD', KEYS[7], head[2], queue.member)
  end
  call('XADD', KEYS[4], first .. '-0', 'w', '\221' .. pack('>I4', count) .. table.concat(events))
  call('PUBLISH', ARGV[5], ARGV[6])
  if ARGV[7] ~= '0' then
    call('APPEND', KEYS[8], table.concat(claimed))
    call('PEXPIRE', KEYS[8], ARGV[7])
  end
  if #small > 0 then
    local wanted = {}
    for _, place in ipairs(small) do
      insert(wanted, ids[place])
    end
    for place, body in ipairs(call('HMGET', KEYS[2], unpack(wanted))) do
      answers[small[place]][2] = body
    end
  end
end

local known = {}
for place, queue in ipairs(queues) do
  local priorities = {}
  for priority = 0, 9 do
    if queue.pending[priority] > 0 then
      insert(priorities, priority)
    end
  end
  local delayed = call('ZRANGE', queue.delayed, 0, 0, 'WITHSCORES')
  local leased = call('ZRANGE', queue.leased, 0, 0, 'WITHSCORES')
  known[place] = { table.concat(priorities), delayed[2] or '', leased[2] or '' }
end
return { answers, known }
