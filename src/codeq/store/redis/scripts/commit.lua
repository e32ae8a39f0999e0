-- Applies changes, each whole or not at all: record, body or result, index, counts and event.
--
-- KEYS    1 records, 2 bodies, 3 results, 4 task keys, 5 idempotency, 6 number, 7 events, 8 one that is never there;
--         then those that classes name by place
-- ARGV    1 the classes of changes (MessagePack; `classes.py`), 2 runs of changes (MessagePack): class, time for the index, how
--         many; 3 channel of moves, 4 shard (2 bytes), 5 '2' if the call may have been run before, '1' if it has two
--         changes of one task, else '';
--         then for each change, as many as its class has:
--         id (16), payload bytes (4), version it expects (8) unless it is new, version when it was withdrawn (8)
--         | record without its version
--         | lease it expects | idempotency field | body or result
-- Returns per change: its version; 0 if the task is no longer what was expected; or the id of the task that has its
--         idempotency key. A change that was applied before, whose reply was lost, answers its version again
--         if ARGV[5] says so; else whoever made the same record was another call, and one of the two is refused.
--         A change of a class that follows is applied if the change before it is, with the next version; no answer of its own.
-- Cost    some ten commands for the batch, and O(log n) for each entry of a sorted set.
local classes, runs = cmsgpack.unpack(ARGV[1]), cmsgpack.unpack(ARGV[2])
local records, bodies, results, task_keys, idempotency = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local call, sub, pack, number = redis.call, string.sub, struct.pack, struct.unpack
local ARGV = ARGV

local function each(command, key, values)
  for from = 1, #values, 4000 do
    call(command, key, unpack(values, from, math.min(from + 3999, #values)))
  end
end
local function list(of, key)
  local found = of[key]
  if key and not found then
    found = {}
    of[key] = found
  end
  return found
end

-- Reads what changes compare with. A new task has nothing to compare with, unless it may have been stored before.
local careful, repeated, reads, wanted, at = ARGV[5] ~= '', ARGV[5] == '2', {}, {}, 6
for _, run in ipairs(runs) do
  local class = classes[run[1]]
  local width, field, reading = class.width, class.field, careful or not class.new
  if reading or field then
    for change = at, at + (run[3] - 1) * width, width do
      if reading then
        reads[#reads + 1] = sub(ARGV[change], 1, 16)
      end
      if field then
        wanted[#wanted + 1] = ARGV[change + field]
      end
    end
  end
  at = at + run[3] * width
end
local stored, owners = #reads > 0 and call('HMGET', records, unpack(reads)), {}
if #wanted > 0 then
  for place, owner in ipairs(call('HMGET', idempotency, unpack(wanted))) do
    owners[wanted[place]] = owner
  end
end

-- Decides in order, and gathers what is written at the end. A second change of the same task in one call is refused.
local first = tonumber(call('GET', KEYS[6]) or 0)
local answers, answered, seen, version, applied, is_applied, needs_memory = {}, 0, {}, first, false, false, false
local puts, news, outcomes, added_keys, named, unwanted = {}, {}, {}, {}, {}, {}
local events, ended, dropped, pushes, removes, adds = {}, {}, {}, {}, {}, {}
local place, put, read, ends, entered = 0, 0, 0, 0, {}
at = 6
for _, run in ipairs(runs) do
  local class, time = classes[run[1]], run[2]
  local new, quiet, drops, is_ended, width = class.new, class.quiet, class.drops, class.ended, class.width
  local guard, field, content, reading = class.guard, class.field, class.content, careful or not class.new
  local follows = class.follows
  local leave, enter, push = list(removes, class.leave), list(adds, class.enter), list(pushes, class.push)
  local dead_from, dead_to = class.dead_from, class.dead_to
  local withdraws = class.withdraws and list(adds, class.withdraws[1])
  local withdrawn = class.withdrawn and list(removes, class.withdrawn[1])
  local listed = class.listing and list(drops and removes or adds, class.listing)
  local written = list(removes, class.written)
  local changes, bytes = 0, 0
  local left, entered_to, pushed = leave and #leave, enter and #enter, push and #push
  local listed_to = listed and #listed
  local contents = new and news or outcomes
  local filled = #contents
  for _ = 1, run[3] do
    place = place + 1
    local head, record, id, current = ARGV[at], ARGV[at + 1], nil, nil
    if reading then
      read = read + 1
      id, current = reads[read], stored[read]
    else
      id = sub(head, 1, 16)
    end
    local answer, was_applied = 0, is_applied
    is_applied = false
    local expected = not new and sub(head, 21, 28)
    if careful and seen[id] then
      answer = 0
    elseif new then
      local owner = field and owners[ARGV[at + field]]
      if owner and owner ~= id then
        answer = owner
        if written then
          unwanted[#unwanted + 1] = id
          written[#written + 1] = id
        end
      elseif current then
        answer = number('>I8', current, #current - 7)
      elseif follows and not was_applied then
        if written then
          unwanted[#unwanted + 1] = id
          written[#written + 1] = id
        end
      elseif not content and call('HEXISTS', bodies, id) == 0 then
        return redis.error_reply('TRYAGAIN the body of a task is missing')
      else
        is_applied = true
      end
    elseif current then
      if sub(current, -8) == expected then
        is_applied = not guard or call('ZSCORE', KEYS[class.leased], id) == ARGV[at + guard]
      elseif repeated and sub(current, 1, -9) == record then
        answer = number('>I8', current, #current - 7)
      end
    end
    if is_applied then
      if careful then
        seen[id] = true
      end
      changes = changes + 1
      local packed, value = expected, nil
      if quiet then
        answer = number('>I8', expected)
      else
        version = version + 1
        packed = pack('>I8', version)
        answer = version
      end
      value = record .. packed
      if not quiet then
        events[version - first] = value
      end
      if is_ended then
        ends = ends + 1
        ended[ends] = id
      end
      if leave then
        left = left + 1
        leave[left] = id
      end
      if dead_from then
        local dead = list(removes, dead_from[1])
        dead[#dead + 1] = dead_from[2] .. '\0' .. expected .. id
      end
      if enter then
        enter[entered_to + 1], enter[entered_to + 2] = time, id
        entered_to = entered_to + 2
      end
      if dead_to then
        local dead = list(adds, dead_to[1])
        dead[#dead + 1] = '0'
        dead[#dead + 1] = dead_to[2] .. '\0' .. packed .. id
      end
      if withdraws then
        withdraws[#withdraws + 1] = '0'
        withdraws[#withdraws + 1] = class.withdraws[2] .. expected
      elseif withdrawn then
        withdrawn[#withdrawn + 1] = class.withdrawn[2] .. sub(head, 29, 36)
      end
      if push then
        pushed = pushed + 1
        push[pushed] = packed .. (new and head or sub(head, 1, 20))
      end
      if listed then
        if not drops then
          listed_to = listed_to + 1
          listed[listed_to] = '0'
        end
        listed_to = listed_to + 1
        listed[listed_to] = id
      end
      if drops then
        dropped[#dropped + 1] = id
        bytes = bytes - number('>I4', head, 17)
      else
        puts[put + 1], puts[put + 2] = id, value
        put = put + 2
        if written then
          written[#written + 1] = id
        end
        if new then
          bytes = bytes + number('>I4', head, 17)
          if field then
            owners[ARGV[at + field]] = id
            added_keys[#added_keys + 1] = id
            added_keys[#added_keys + 1] = ARGV[at + field]
            named[#named + 1] = ARGV[at + field]
            named[#named + 1] = id
          end
        end
        if content then
          contents[filled + 1], contents[filled + 2] = id, ARGV[at + content]
          filled = filled + 2
          needs_memory = needs_memory or #ARGV[at + content] > 1024
        end
      end
    end
    if not follows then
      answered = answered + 1
      answers[answered] = answer
    end
    at = at + width
  end
  if changes > 0 then
    applied = true
    needs_memory = needs_memory or not (is_ended or drops or quiet)
    if class.enter then
      entered[class.enter] = math.min(entered[class.enter] or math.huge, tonumber(time))
    end
    class.applied = (class.applied or 0) + changes
    class.bytes = (class.bytes or 0) + bytes
  end
end
each('HDEL', bodies, unwanted)
if not applied then
  for key, values in pairs(removes) do
    each('ZREM', KEYS[key], values)
  end
  return answers
end

-- Once its memory is full, Redis refuses the first write of a script unless that frees some, and none after it. So what ends or
-- deletes tasks may go on, as every task does once; else they would be there for ever.
local moves = version - first
if moves == 0 then
  call('DEL', KEYS[8])
elseif type(redis.pcall('INCRBY', KEYS[6], moves)) == 'table' then
  if not needs_memory then
    call('DEL', KEYS[8])
  end
  call('INCRBY', KEYS[6], moves)
end
each('HSET', records, puts)
each('HSET', bodies, news)
each('HSET', results, outcomes)
each('HSET', task_keys, added_keys)
each('HSET', idempotency, named)
if #dropped > 0 then
  local gone = {}
  for _, field in ipairs(call('HMGET', task_keys, unpack(dropped))) do
    if field then
      gone[#gone + 1] = field
    end
  end
  each('HDEL', idempotency, gone)
  for _, key in ipairs({ records, bodies, results, task_keys }) do
    call('HDEL', key, unpack(dropped))
  end
end
for key, values in pairs(removes) do
  each('ZREM', KEYS[key], values)
end
for key, values in pairs(adds) do
  each('ZADD', KEYS[key], values)
end
for key, values in pairs(pushes) do
  each('RPUSH', KEYS[key], values)
end

-- Adds up what changes of each count, reads all counts of a tenant and writes them with one command each.
local counts, heads, channels = {}, {}, {}
for _, class in ipairs(classes) do
  local changes = class.applied
  if changes then
    local of = counts[class.counts]
    if not of then
      of = { fields = {}, changes = {}, about = {} }
      counts[class.counts] = of
    end
    for _, count in ipairs(class.counted) do
      local field = count[1]
      if not of.changes[field] then
        of.fields[#of.fields + 1] = field
        of.changes[field], of.about[field] = 0, count
      end
      of.changes[field] = of.changes[field] + count[2] * (count[4] and class.bytes or changes)
      of.tenants = of.tenants or count[5]
    end
    for _, head in ipairs(class.heads) do
      local known = heads[head[1]]
      if not known then
        known = head
        heads[head[1]] = head
      end
      known.left = known.left or class.quiet or class.leave == head[1]
    end
    if class.channel then
      channels[class.channel] = (channels[class.channel] or 0) + changes
    end
  end
end
for key, of in pairs(counts) do
  local now, gone, ready, unready = {}, {}, {}, {}
  local fields, changes, tenants, queues = of.fields, of.changes, of.tenants, 0
  if tenants then
    fields[#fields + 1] = '#q' -- the last: the others say how it changes
  end
  local found = #fields > 0 and call('HMGET', KEYS[key], unpack(fields)) or {}
  for place, field in ipairs(fields) do
    local before, about = tonumber(found[place] or 0), of.about[field]
    local after = before + (changes[field] or queues)
    if after ~= before then
      if after == 0 then
        gone[#gone + 1] = field
      else
        now[#now + 1] = field
        now[#now + 1] = after
      end
    end
    if (before == 0) ~= (after == 0) then
      if not about then
        call(after == 0 and 'SREM' or 'SADD', KEYS[tenants[1]], tenants[2])
      elseif about[3] then
        local list_of = list(after == 0 and unready or ready, about[3][1])
        if after ~= 0 then
          list_of[#list_of + 1] = '0'
        else
          call('DEL', KEYS[about[3][2]]) -- of tasks that were cancelled, whom no claim may ever pass
        end
        list_of[#list_of + 1] = field
      elseif about[5] then
        queues = queues + (after == 0 and -1 or 1)
      end
    end
  end
  each('HSET', KEYS[key], now)
  each('HDEL', KEYS[key], gone)
  for queue, values in pairs(ready) do
    each('ZADD', KEYS[queue], values)
  end
  for queue, values in pairs(unready) do
    each('ZREM', KEYS[queue], values)
  end
end
for index, head in pairs(heads) do
  local earliest = call('ZRANGE', KEYS[index], '0', '0', 'WITHSCORES')
  if not earliest[2] then
    call('ZREM', KEYS[head[2]], head[3])
  elseif head.left or entered[index] <= tonumber(earliest[2]) then
    call('ZADD', KEYS[head[2]], earliest[2], head[3])
  end
end
if moves > 0 then
  if moves % 2 == 1 then
    events[moves + 1] = ''
  end
  call('XADD', KEYS[7], (first + 1) .. '-0', unpack(events))
  for channel, tasks in pairs(channels) do
    call('PUBLISH', channel, tasks)
  end
  call('PUBLISH', ARGV[3], ARGV[4] .. table.concat(ended))
end
return answers
