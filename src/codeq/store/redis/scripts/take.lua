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
-- Returns the taken tasks as record, body or false, record, and so on; per queue [its priorities, next delayed, next lease];
--         and 1 if the entries that may be read ran out.
--         A request id whose tasks are still leased to it returns them again, and nothing is taken.
-- Cost    reads at most ARGV[3] entries, whatever was cancelled before; then as `commit`.
local call, sub, insert, pack = redis.call, string.sub, table.insert, struct.pack
local left, bytes, entries_left = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if ARGV[7] ~= '0' and ARGV[9] == '' then
  local again, answers = call('GET', KEYS[8]) or '', {}
  for at = 1, #again, 24 do
    local record = call('HGET', KEYS[1], sub(again, at, at + 15))
    if record and sub(record, 1, 8) == sub(again, at + 16, at + 23) then
      insert(answers, record)
      insert(answers, false)
    end
  end
  if #answers > 0 then
    return { answers, false, 0 }
  end
  call('DEL', KEYS[8])
end

local queues, fields = {}, {}
for place = 1, (#KEYS - 9) / 12 do
  local at, keys = 10 + (place - 1) * 5, 10 + (place - 1) * 12
  local queue = { command = ARGV[at], member = ARGV[at + 1], room = tonumber(ARGV[at + 2]), claim = ARGV[at + 3] .. '\207',
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
local ids, owners, before, sizes, count = {}, {}, {}, {}, 0
local function take(queue, priority, wanted)
  local key = KEYS[queue.keys + priority]
  local entries = call('LPOP', key, wanted)
  if not entries then
    return 0
  end
  local found = {}
  for place, entry in ipairs(entries) do
    found[place] = sub(entry, 9, 24)
  end
  local stored = call('HMGET', KEYS[1], unpack(found))
  local counted = count
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
      local size = struct.unpack('>I4', entry, 25)
      bytes, count = bytes - size, count + 1
      ids[count], owners[count], before[count], sizes[count] = found[place], queue, record, size
    end
  end
  local taken = count - counted
  left, queue.room = left - taken, queue.room - taken
  if taken > 0 then
    queue.taken[priority] = (queue.taken[priority] or 0) + taken
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

local answers = {}
if count > 0 then
  local first = call('INCRBY', KEYS[3], count) - count + 1
  local puts, events, leases, small, wanted, claimed = {}, { '\221' .. pack('>I4', count) }, {}, {}, {}, {}
  local inline_max, at, piece = tonumber(ARGV[4]), 0, 1
  for place = 1, count do
    local id, queue, stored = ids[place], owners[place], before[place]
    local version, task, previous = pack('>I8', first + place - 1), sub(stored, 10), sub(stored, 1, 8)
    local record = version .. '\146' .. task .. queue.claim .. previous
    puts[at + 1], puts[at + 2] = id, record
    answers[at + 1], answers[at + 2] = record, false
    at = at + 2
    events[piece + 1], events[piece + 2], events[piece + 3], events[piece + 4] = '\146', task, queue.claim, previous
    piece = piece + 4
    claimed[at - 1], claimed[at] = id, version
    local of = leases[queue]
    if not of then
      of = {}
      leases[queue] = of
    end
    local size = #of
    of[size + 1], of[size + 2] = queue.lease, id
    if sizes[place] <= inline_max then
      small[#small + 1] = at
      wanted[#wanted + 1] = id
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
    local head = call('ZRANGE', queue.leased, '0', '0', 'WITHSCORES')
    call('ZADD', KEYS[7], head[2], queue.member)
  end
  call('XADD', KEYS[4], first .. '-0', 'w', table.concat(events))
  call('PUBLISH', ARGV[5], ARGV[6])
  if ARGV[7] ~= '0' then
    call('APPEND', KEYS[8], table.concat(claimed))
    call('PEXPIRE', KEYS[8], ARGV[7])
  end
  if #small > 0 then
    for place, body in ipairs(call('HMGET', KEYS[2], unpack(wanted))) do
      answers[small[place]] = body
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
  local delayed = call('ZRANGE', queue.delayed, '0', '0', 'WITHSCORES')
  local leased = call('ZRANGE', queue.leased, '0', '0', 'WITHSCORES')
  known[place] = { table.concat(priorities), delayed[2] or '', leased[2] or '' }
end
return { answers, known, entries_left <= 0 and 1 or 0 }
