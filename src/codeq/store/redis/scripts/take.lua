-- Leases ready tasks for one or more claims of the same queues, one claim after the other: the highest priority of all queues
-- first, equal priorities in rotation. Nothing is decided here: the arguments of the claim are appended to the record, and every
-- reader applies the claim itself.
--
-- KEYS    1 records, 2 bodies, 3 number, 4 events, 5 counts, 6 ready, 7 heads of leases, 8 one that is never there;
--         for each queue thirteen: its pending lists 0 to 9, delayed, leased, withdrawn; then for each claim with a request id its key
-- ARGV    1 entries read at most, 2 bytes of a body that is returned at most, 3 channel of moves, 4 shard (2 bytes), 5 the only
--         priority, or '', 6 number of queues, 7 '1' to be told when the next task of each queue is due, 8 number of runs;
--         for each queue three: command | its name in the heads | tasks it may have in progress, or -1
--         for each run of claims that are alike six: how many | tasks at most | payload bytes at most | milliseconds to remember
--         the request id, or 0 | '1' if they are further parts of claims, whose ids are remembered beside the other parts and not
--         looked up | where their terms begin:
--         for each queue two: arguments of the claim (MessagePack) | end of the lease. Runs may have the same terms.
-- Returns per claim: how many tasks, negative if they were leased before; record and body, or false, of all tasks;
--         per queue: its priorities, and if asked: next delayed, next lease; and 1 if the entries that may be read ran out.
--         A request id whose tasks are still leased to it returns them again, and nothing is taken.
-- Cost    reads at most ARGV[1] entries, and passes runs of withdrawn ones in O(log n); then as `commit`.
local call, sub, insert, pack, unpack_number = redis.call, string.sub, table.insert, struct.pack, struct.unpack
local records, entries_left, number_of_queues = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[6])

local digits = { [0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9' }
local queues, fields = {}, {}
for place = 1, number_of_queues do
  local at, keys = 6 + place * 3, 9 + (place - 1) * 13
  local command, room = ARGV[at], tonumber(ARGV[at + 2])
  local leased = KEYS[keys + 11]
  if room < 0 then
    room = math.huge
  else
    room = math.max(0, room - call('ZCARD', leased))
  end
  queues[place] = { command = command, member = ARGV[at + 1], room = room, keys = keys, leased = leased, place = place,
    taken = {}, pending = {}, windows = {}, leases = {}, total = 0, earliest = math.huge }
  for priority = 0, 9 do
    fields[place * 11 - 10 + priority] = digits[priority] .. command
  end
  fields[place * 11] = 'r' .. command
end
local counted = call('HMGET', KEYS[5], unpack(fields))
local lowest, highest = tonumber(ARGV[5]) or 0, tonumber(ARGV[5]) or 9
local held = {} -- priorities that have pending tasks, highest first
for priority = 10, 0, -1 do
  local is_held = false
  for place, queue in ipairs(queues) do
    local pending = tonumber(counted[place * 11 - 10 + priority] or 0)
    queue.pending[priority] = pending
    is_held = is_held or pending > 0
  end
  if is_held and priority >= lowest and priority <= highest then
    insert(held, priority)
  end
end

-- Reads entries from the front of a list, and their records. Of one queue as many as all claims want that are still to be
-- served: what none of them takes is put back at the end.
local left, bytes, wanted_later = 0, 0, 0
local function read(queue, priority, wanted)
  if number_of_queues == 1 then
    wanted = math.min(wanted + wanted_later, entries_left, queue.room)
  end
  local entries = call('LPOP', KEYS[queue.keys + priority], wanted)
  if not entries then
    return nil
  end
  local found = {}
  for place, entry in ipairs(entries) do
    found[place] = sub(entry, 9, 24)
  end
  local window = { entries = entries, ids = found, stored = call('HMGET', records, unpack(found)), passed = 0 }
  queue.windows[priority] = window
  return window
end

-- Takes entries from the front of a list. Those of tasks that have moved since are dropped. Returns how many it has passed.
local ids, owners, before, sizes, count = {}, {}, {}, {}, 0
local function take(queue, priority, wanted)
  local window, passed, taken = queue.windows[priority], 0, count
  while passed < wanted and bytes > 0 do
    if not window or window.passed == #window.entries then
      window = read(queue, priority, wanted - passed)
      if not window then
        break
      end
    end
    local entries, stored, found, from = window.entries, window.stored, window.ids, window.passed
    local place, to = from, math.min(#entries, from + wanted - passed)
    while place < to and bytes > 0 do
      place = place + 1
      local entry, record = entries[place], stored[place]
      if record and sub(record, -8) == sub(entry, 1, 8) then
        local size = unpack_number('>I4', entry, 25)
        bytes, count = bytes - size, count + 1
        ids[count], owners[count], before[count], sizes[count] = found[place], queue, record, size
      end
    end
    window.passed, passed = place, passed + place - from
  end
  taken = count - taken
  entries_left, left, queue.room = entries_left - passed, left - taken, queue.room - taken
  if taken > 0 then
    queue.taken[priority] = (queue.taken[priority] or 0) + taken
  end
  if taken < passed and window and window.passed == #window.entries then
    drop_withdrawn(KEYS[queue.keys + priority], KEYS[queue.keys + 12], priority)
  end
  return passed
end

local function put_back()
  for _, queue in ipairs(queues) do
    for priority, window in pairs(queue.windows) do
      local rest = {}
      for place = #window.entries, window.passed + 1, -1 do
        insert(rest, window.entries[place])
      end
      if #rest > 0 then
        call('LPUSH', KEYS[queue.keys + priority], unpack(rest))
      end
    end
  end
end

local function serve()
  for _, priority in ipairs(held) do
    if left <= 0 or bytes <= 0 or entries_left <= 0 then
      return
    end
    local active = {}
    for _, queue in ipairs(queues) do
      if queue.pending[priority] > (queue.taken[priority] or 0) then
        insert(active, queue)
      end
    end
    while #active > 0 and left > 0 and bytes > 0 and entries_left > 0 do
      local share, rest = math.max(1, math.floor(left / #active)), {}
      if #active > 1 then
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
end

-- Serves one claim after the other. `claims` has where the run of each begins, `ends` how many tasks were taken up to its end.
local claims, ends, sizes_of, repeated, key_of = {}, {}, {}, {}, {}
local at, key = 9 + number_of_queues * 3, 8 + number_of_queues * 13
for _ = 1, tonumber(ARGV[8]) do
  local alike = tonumber(ARGV[at])
  for _ = 1, alike do
    insert(claims, at)
  end
  wanted_later = wanted_later + alike * tonumber(ARGV[at + 1])
  at = at + 6
end
for claim, from in ipairs(claims) do
  local taken = count
  if ARGV[from + 3] ~= '0' then
    key = key + 1
    key_of[claim] = KEYS[key]
    if ARGV[from + 4] == '' then
      local again, found = call('GET', KEYS[key]) or '', {}
      for start = 1, #again, 24 do
        local record = call('HGET', records, sub(again, start, start + 15))
        if record and sub(record, -8) == sub(again, start + 16, start + 23) then
          insert(found, record)
        end
      end
      if #found > 0 then
        repeated[claim], sizes_of[claim] = found, -#found
      end
    end
  end
  local limit = tonumber(ARGV[from + 1])
  wanted_later = wanted_later - limit
  if not repeated[claim] then
    left, bytes = limit, tonumber(ARGV[from + 2])
    serve()
    sizes_of[claim] = count - taken
  end
  ends[claim] = count
end
put_back()

local answer, slot = {}, 0
local function add_repeated(claim)
  for _, record in ipairs(repeated[claim] or {}) do
    answer[slot + 1], answer[slot + 2] = record, false
    slot = slot + 2
  end
end

if count > 0 then
  local first = call('INCRBY', KEYS[3], count) - count + 1
  local puts, events, wanted, slot_of = {}, {}, {}, {}
  local inline_max, inline, place, put = tonumber(ARGV[2]), 0, 0, 0
  for claim, from in ipairs(claims) do
    local arguments, remembered_as = ARGV[from + 5], key_of[claim]
    local claimed = remembered_as and {}
    if repeated[claim] then
      add_repeated(claim)
    end
    while place < ends[claim] do
      place = place + 1
      local id, queue = ids[place], owners[place]
      local version = pack('>I8', first + place - 1)
      local record = before[place] .. ARGV[arguments + queue.place * 2 - 2] .. version
      puts[put + 1], puts[put + 2] = id, record
      put = put + 2
      events[place] = record
      answer[slot + 1], answer[slot + 2] = record, false
      slot = slot + 2
      if claimed then
        insert(claimed, id .. version)
      end
      if sizes[place] <= inline_max then
        inline = inline + 1
        wanted[inline], slot_of[inline] = id, slot
      end
    end
    if claimed and #claimed > 0 then
      if ARGV[from + 4] == '' then
        call('SET', remembered_as, table.concat(claimed), 'PX', ARGV[from + 3])
      else
        call('APPEND', remembered_as, table.concat(claimed))
        call('PEXPIRE', remembered_as, ARGV[from + 3])
      end
    end
  end
  call('HSET', records, unpack(puts))
  for claim = #claims, 1, -1 do -- backwards: a small sorted set is searched from its front
    for taken = ends[claim], (ends[claim - 1] or 0) + 1, -1 do
      local queue = owners[taken]
      local leases, size, lease = queue.leases, queue.total * 2, ARGV[ARGV[claims[claim] + 5] + queue.place * 2 - 1]
      leases[size + 1], leases[size + 2] = lease, ids[taken]
      queue.total = queue.total + 1
      if lease ~= queue.lease then
        queue.lease, queue.earliest = lease, math.min(queue.earliest, tonumber(lease))
      end
    end
  end
  local counts, emptied = {}, {}
  for _, queue in ipairs(queues) do
    if queue.total > 0 then
      call('ZADD', queue.leased, unpack(queue.leases))
      insert(counts, 'r' .. queue.command)
      insert(counts, queue.pending[10] + queue.total)
      for priority, taken in pairs(queue.taken) do
        local field, now = digits[priority] .. queue.command, queue.pending[priority] - taken
        queue.pending[priority] = now
        if now == 0 then
          insert(emptied, field)
        else
          insert(counts, field)
          insert(counts, now)
        end
      end
      queue.head = call('ZRANGE', queue.leased, '0', '0', 'WITHSCORES')
      if tonumber(queue.head[2]) >= queue.earliest then
        call('ZADD', KEYS[7], queue.head[2], queue.member)
      end
    end
  end
  call('HSET', KEYS[5], unpack(counts))
  if #emptied > 0 then
    call('HDEL', KEYS[5], unpack(emptied))
    call('ZREM', KEYS[6], unpack(emptied))
  end
  if count % 2 == 1 then
    events[count + 1] = ''
  end
  call('XADD', KEYS[4], first .. '-0', unpack(events))
  call('PUBLISH', ARGV[3], ARGV[4])
  if inline > 0 then
    for place, body in ipairs(call('HMGET', KEYS[2], unpack(wanted))) do
      answer[slot_of[place]] = body
    end
  end
else
  for claim in ipairs(claims) do
    add_repeated(claim)
  end
end

local known = {}
for place, queue in ipairs(queues) do
  local priorities = {}
  for priority = 0, 9 do
    if queue.pending[priority] > 0 then
      insert(priorities, digits[priority])
    end
  end
  known[place] = { table.concat(priorities) }
  if ARGV[7] == '1' then
    local delayed = call('ZRANGE', KEYS[queue.keys + 10], '0', '0', 'WITHSCORES')
    local head = queue.head or call('ZRANGE', queue.leased, '0', '0', 'WITHSCORES')
    known[place][2], known[place][3] = delayed[2] or '', head[2] or ''
  end
end
return { sizes_of, answer, known, entries_left <= 0 and 1 or 0 }
