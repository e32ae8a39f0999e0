-- Finds the pending task that waits longest at each priority of a queue. Drops entries of tasks that have moved since.
--
-- KEYS    1 records, then pending lists
-- ARGV    1 entries to drop from one list at most
-- Returns per list: the record of its first task, or false
local found = {}
for place = 2, #KEYS do
  found[place - 1] = false
  for _ = 0, tonumber(ARGV[1]) do
    local entry = redis.call('LINDEX', KEYS[place], 0)
    if not entry then
      break
    end
    local record = redis.call('HGET', KEYS[1], string.sub(entry, 9, 24))
    if record and string.sub(record, -8) == string.sub(entry, 1, 8) then
      found[place - 1] = record
      break
    end
    redis.call('LPOP', KEYS[place])
  end
end
return found
