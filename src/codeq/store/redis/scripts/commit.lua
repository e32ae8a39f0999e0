-- Applies changes, each whole or not at all: record, body or result, index, counts and event.
--
-- KEYS    1 records, 2 bodies, 3 results, 4 task keys, 5 idempotency, 6 number, 7 events, 8 one that is never there;
--         then those that classes name by place
-- ARGV    1 the classes of changes (MessagePack; `classes.py`), 2 runs of changes (MessagePack): class, time for the index, how
--         many; 3 channel of moves, 4 shard (2 bytes); then for each change, as many as its class has:
--         id (16), payload bytes (4), version it expects (8) unless it is new | record
--         | lease it expects | idempotency field | body or result
-- Returns per change: its version; 0 if the task is no longer what was expected; or the id of the task that has its
--         idempotency key. A change that was applied before, whose reply was lost, answers its version again.
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

local ids, wanted, total, at = {}, {}, 0, 5
for _, run in ipairs(runs) do
  local class = classes[run[1]]
  local width, field = class.width, class.field
  for _ = 1, run[3] do
    total = total + 1
    ids[total] = sub(ARGV[at], 1, 16)
    if field then
      wanted[#wanted + 1] = ARGV[at + field]
    end
    at = at + width
  end
end
local stored, owners = call('HMGET', records, unpack(ids)), {}
if #wanted > 0 then
  for place, owner in ipairs(call('HMGET', idempotency, unpack(wanted))) do
    owners[wanted[place]] = owner
  end
end

-- Decides in order, and gathers what is written at the end. A second change of the same task in one call is refused.
local first = tonumber(call('GET', KEYS[6]) or 0)
local answers, seen, version, applied = {}, {}, first, false
local puts, news, outcomes, added_keys, named, unwanted = {}, {}, {}, {}, {}, {}
local events, ended, dropped, pushes, removes, adds = { '' }, {}, {}, {}, {}, {}
local place, put = 0, 0
at = 5
for _, run in ipairs(runs) do
  local class, time = classes[run[1]], run[2]
  local new, quiet, drops, is_ended, width = class.new, class.quiet, class.drops, class.ended, class.width
  local guard, field, content = class.guard, class.field, class.content
  local leave, enter, push = list(removes, class.leave), list(adds, class.enter), list(pushes, class.push)
  local dead_from, dead_to = class.dead_from, class.dead_to
  local listed = class.listing and list(drops and removes or adds, class.listing)
  local changes, bytes = 0, 0
  for _ = 1, run[3] do
    place = place + 1
    local head, record, id, current = ARGV[at], ARGV[at + 1], ids[place], stored[place]
    local answer, is_applied = 0, false
    local expected = not new and sub(head, 21, 28)
    if seen[id] then
      answer = 0
    elseif new then
      local owner = field and owners[ARGV[at + field]]
      if owner and owner ~= id then
        answer = owner
        if not content then
          unwanted[#unwanted + 1] = id
        end
      elseif current then
        answer = number('>I8', current)
      elseif not content and call('HEXISTS', bodies, id) == 0 then
        return redis.error_reply('TRYAGAIN the body of a task is missing')
      else
        is_applied = true
      end
    elseif current then
      if sub(current, 1, 8) == expected then
        is_applied = not guard or call('ZSCORE', KEYS[class.leased], id) == ARGV[at + guard]
      elseif sub(current, 9) == record then
        answer = number('>I8', current)
      end
    end
    if is_applied then
      seen[id] = true
      changes = changes + 1
      local packed = expected
      if quiet then
        answer = number('>I8', expected)
      else
        version = version + 1
        packed = pack('>I8', version)
        answer = version
        events[version - first + 1] = record
      end
      if is_ended then
        ended[#ended + 1] = id
      end
      if leave then
        leave[#leave + 1] = id
      end
      if dead_from then
        local dead = list(removes, dead_from[1])
        dead[#dead + 1] = dead_from[2] .. '\0' .. expected .. id
      end
      if enter then
        local size = #enter
        enter[size + 1] = time
        enter[size + 2] = id
      end
      if dead_to then
        local dead = list(adds, dead_to[1])
        dead[#dead + 1] = '0'
        dead[#dead + 1] = dead_to[2] .. '\0' .. packed .. id
      end
      if push then
        push[#push + 1] = packed .. sub(head, 1, 20)
      end
      if listed then
        if not drops then
          listed[#listed + 1] = '0'
        end
        listed[#listed + 1] = id
      end
      if drops then
        dropped[#dropped + 1] = id
        bytes = bytes - number('>I4', head, 17)
      else
        puts[put + 1] = id
        puts[put + 2] = packed .. record
        put = put + 2
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
          local contents = new and news or outcomes
          local size = #contents
          contents[size + 1] = id
          contents[size + 2] = ARGV[at + content]
        end
      end
    end
    answers[place] = answer
    at = at + width
  end
  if changes > 0 then
    applied = true
    class.applied = (class.applied or 0) + changes
    class.bytes = (class.bytes or 0) + bytes
  end
end
each('HDEL', bodies, unwanted)
if not applied then
  return answers
end

local moves = version - first
if moves > 0 then
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

local heads, channels = {}, {}
for _, class in ipairs(classes) do
  local changes = class.applied
  if changes then
    for _, count in ipairs(class.counts) do
      local key, field, change, ready = KEYS[count[1]], count[2], count[3] * changes, count[4]
      local now = call('HINCRBY', key, field, change)
      if now == 0 then
        call('HDEL', key, field)
      end
      if ready and now == 0 then
        call('ZREM', KEYS[ready], field)
      elseif ready and now == change then
        call('ZADD', KEYS[ready], '0', field)
      end
      local totals = count[5]
      if totals and now == 0 then
        call('HINCRBY', KEYS[totals[1]], 'q', '-1')
        if call('EXISTS', key) == 0 then
          call('SREM', KEYS[totals[2]], totals[3])
        end
      elseif totals and now == change then
        call('HINCRBY', KEYS[totals[1]], 'q', '1')
        call('SADD', KEYS[totals[2]], totals[3])
      end
    end
    if class.tasks then
      call('HINCRBY', KEYS[class.usage], 't', class.tasks * changes)
    end
    if class.bytes ~= 0 and call('HINCRBY', KEYS[class.usage], 'b', class.bytes) == 0 and class.drops then
      call('HDEL', KEYS[class.usage], 'b')
    end
    for _, head in ipairs(class.heads) do
      heads[head[1]] = head
    end
    if class.channel then
      channels[class.channel] = (channels[class.channel] or 0) + changes
    end
  end
end
for _, head in pairs(heads) do
  local earliest = call('ZRANGE', KEYS[head[1]], '0', '0', 'WITHSCORES')
  if earliest[2] then
    call('ZADD', KEYS[head[2]], earliest[2], head[3])
  else
    call('ZREM', KEYS[head[2]], head[3])
  end
end
if moves > 0 then
  events[1] = '\221' .. pack('>I4', moves)
  call('XADD', KEYS[7], (first + 1) .. '-0', 'w', table.concat(events))
  for channel, tasks in pairs(channels) do
    call('PUBLISH', channel, tasks)
  end
  call('PUBLISH', ARGV[3], ARGV[4] .. table.concat(ended))
end
return answers
