-- Reads the counts of queues, and finds the pending task that waits longest at each of their priorities. Drops entries of tasks
-- that have moved since, and runs of those that were withdrawn.
--
-- KEYS    1 records; for each queue twelve: the counts of its tenant, its pending lists 0 to 9, withdrawn
-- ARGV    1 entries to drop from one list at most, 2 counts of a queue; for each queue the names of its counts, those of its
--         pending lists first
-- Returns per queue: its counts, and the records of the first tasks of its lists
local call, sub, width, answers = redis.call, string.sub, tonumber(ARGV[2]), {}
local function first(key, withdrawn, priority)
  for try = 0, tonumber(ARGV[1]) do
    if try == 1 then
      drop_withdrawn(key, withdrawn, priority)
    end
    local entry = call('LINDEX', key, 0)
    if not entry then
      return nil
    end
    local record = call('HGET', KEYS[1], sub(entry, 9, 24))
    if record and sub(record, -8) == sub(entry, 1, 8) then
      return record
    end
    call('LPOP', key)
  end
end
for queue = 0, (#KEYS - 1) / 12 - 1 do
  local at, heads = 2 + queue * 12, {}
  local counts = call('HMGET', KEYS[at], unpack(ARGV, 3 + queue * width, 2 + (queue + 1) * width))
  for list = 1, 10 do
    heads[#heads + 1] = counts[list] and first(KEYS[at + list], KEYS[at + 11], list - 1) or nil
  end
  answers[queue + 1] = { counts, heads }
end
return answers
