-- Applies changes, each whole or not at all: record, body or result, index, counts and event.
--
-- KEYS    1 records, 2 bodies, 3 results, 4 task keys, 5 idempotency, 6 number, 7 events, 8 one that is never there;
--         then those that classes name by place
-- ARGV    1 the classes of changes (MessagePack), 2 channel of moves, 3 shard (2 bytes); then for each change, eight:
--         id and payload bytes (20) | version it expects, or '' | lease it expects, or '' | record
--         | time for the index | idempotency field, or '' | number of its class | body or result, or ''
-- Returns per change: its version; 0 if the task is no longer what was expected; or the id of the task that has its
--         idempotency key. A change that was applied before, whose reply was lost, answers its version again.
-- Cost    some ten commands for the batch, and O(log n) for each entry of a sorted set.
local classes = cmsgpack.unpack(ARGV[1])
local records, bodies, results, task_keys, idempotency = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local call, sub, insert, pack = redis.call, string.sub, table.insert, struct.pack

local function each(command, key, values)
  for from = 1, #values, 4000 do
    call(command, key, unpack(values, from, math.min(from + 3999, #values)))
  end
end

local function number(version)
  local value = struct.unpack('>I8', version)
  return value
end

local total = (#ARGV - 3) / 8
local ids, fields, wanted = {}, {}, {}
for place = 1, total do
  local at = 4 + (place - 1) * 8
  ids[place] = sub(ARGV[at], 1, 16)
  if ARGV[at + 5] ~= '' then
    insert(wanted, ARGV[at + 5])
  end
end
local stored = call('HMGET', records, unpack(ids))
local owners = {}
if #wanted > 0 then
  for place, owner in ipairs(call('HMGET', idempotency, unpack(wanted))) do
    owners[wanted[place]] = owner
  end
end

-- What is applied, in order. A second change of the same task in one call finds another version.
local answers, applied, seen, moves = {}, {}, {}, 0
for place = 1, total do
  local at = 4 + (place - 1) * 8
  local id, expected, guard, record, field = ids[place], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 5]
  local class, current = classes[tonumber(ARGV[at + 6])], stored[place]
  local answer = 0
  if expected == '' then
    local owner = field ~= '' and owners[field]
    if owner and owner ~= id then
      answer = owner
      call('HDEL', bodies, id)
    elseif current then
      answer = number(current)
    elseif ARGV[at + 7] == '' and call('HEXISTS', bodies, id) == 0 then
      return redis.error_reply('TRYAGAIN the body of a task is missing')
    elseif not seen[id] then
      answer = -1
      if field ~= '' then
        owners[field] = id
      end
    end
  elseif current and not seen[id] then
    if sub(current, 1, 8) ~= expected then
      if sub(current, 10) == record then
        answer = number(current)
      end
    elseif guard == '' or call('ZSCORE', KEYS[class.guard], id) == guard then
      answer = -1
    end
  end
  if answer == -1 then
    seen[id] = true
    insert(applied, { at = at, id = id, class = class, content = ARGV[at + 7], record = record, place = place })
    class.applied = (class.applied or 0) + 1
    if class.quiet then
      answer = number(expected)
    else
      moves = moves + 1
    end
  end
  answers[place] = answer
end
if #applied == 0 then
  return answers
end

local last = moves > 0 and call('INCRBY', KEYS[6], moves) or 0
local version, events, ended = last - moves, {}, {}
local puts, news, outcomes, added_keys, named = {}, {}, {}, {}, {}
local pushes, removes, adds = {}, {}, {}
local function list(of, key)
  of[key] = of[key] or {}
  return of[key]
end
for _, change in ipairs(applied) do
  local class, at, id, packed = change.class, change.at, change.id, ARGV[change.at + 1]
  if not class.quiet then
    version = version + 1
    packed = pack('>I8', version)
    answers[change.place] = version
    insert(events, '\145' .. change.record)
  end
  if class.ended then
    insert(ended, id)
  end
  for _, key in ipairs(class.remove) do
    insert(list(removes, key), id)
  end
  if class.dead_from then
    insert(list(removes, class.dead_from[1]), class.dead_from[2] .. '\0' .. ARGV[at + 1] .. id)
  end
  for _, key in ipairs(class.add) do
    insert(list(adds, key), ARGV[at + 4])
    insert(adds[key], id)
  end
  if class.dead_to then
    insert(list(adds, class.dead_to[1]), 0)
    insert(adds[class.dead_to[1]], class.dead_to[2] .. '\0' .. packed .. id)
  end
  if class.push then
    insert(list(pushes, class.push), packed .. ARGV[at])
  end
  if class.listing then
    insert(list(class.drops and removes or adds, class.listing), class.drops and id or 0)
    if not class.drops then
      insert(adds[class.listing], id)
    end
  end
  if class.drops then
    insert(list(removes, 'tasks'), id)
  else
    insert(puts, id)
    insert(puts, packed .. '\145' .. change.record)
  end
  if ARGV[at + 1] == '' then
    class.bytes = (class.bytes or 0) + struct.unpack('>I4', sub(ARGV[at], 17))
    if change.content ~= '' then
      insert(news, id)
      insert(news, change.content)
    end
    if ARGV[at + 5] ~= '' then
      insert(added_keys, id)
      insert(added_keys, ARGV[at + 5])
      insert(named, ARGV[at + 5])
      insert(named, id)
    end
  else
    if class.drops then
      class.bytes = (class.bytes or 0) - struct.unpack('>I4', sub(ARGV[at], 17))
    elseif change.content ~= '' then
      insert(outcomes, id)
      insert(outcomes, change.content)
    end
  end
end

each('HSET', records, puts)
each('HSET', bodies, news)
each('HSET', results, outcomes)
each('HSET', task_keys, added_keys)
each('HSET', idempotency, named)
if removes.tasks then
  local gone = {}
  for _, field in ipairs(call('HMGET', task_keys, unpack(removes.tasks))) do
    if field then
      insert(gone, field)
    end
  end
  each('HDEL', idempotency, gone)
  for _, key in ipairs({ records, bodies, results, task_keys }) do
    call('HDEL', key, unpack(removes.tasks))
  end
  removes.tasks = nil
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
        call('ZADD', KEYS[ready], 0, field)
      end
      local totals = count[5]
      if totals and now == 0 then
        call('HINCRBY', KEYS[totals[1]], 'q', -1)
        if call('EXISTS', key) == 0 then
          call('SREM', KEYS[totals[2]], totals[3])
        end
      elseif totals and now == change then
        call('HINCRBY', KEYS[totals[1]], 'q', 1)
        call('SADD', KEYS[totals[2]], totals[3])
      end
    end
    if class.tasks ~= 0 then
      call('HINCRBY', KEYS[class.usage], 't', class.tasks * changes)
    end
    if class.bytes and call('HINCRBY', KEYS[class.usage], 'b', class.bytes) == 0 and class.drops then
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
  local first = call('ZRANGE', KEYS[head[1]], 0, 0, 'WITHSCORES')
  if first[2] then
    call('ZADD', KEYS[head[2]], first[2], head[3])
  else
    call('ZREM', KEYS[head[2]], head[3])
  end
end
if moves > 0 then
  call('XADD', KEYS[7], (last - moves + 1) .. '-0', 'w', '\221' .. pack('>I4', moves) .. table.concat(events))
  for channel, tasks in pairs(channels) do
    call('PUBLISH', channel, tasks)
  end
  call('PUBLISH', ARGV[2], ARGV[3] .. table.concat(ended))
end
return answers
