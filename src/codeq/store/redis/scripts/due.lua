-- Reads the tasks whose time has come.
--
-- KEYS    1 records, then sorted sets of task ids by time
-- ARGV    1 the time, 2 tasks at most, 3 tasks of one set at most
-- Returns [place of the set, task id, record or false], set by set, earliest first
local found, left = {}, tonumber(ARGV[2])
for place = 2, #KEYS do
  local limit = math.min(left, tonumber(ARGV[3]))
  if limit > 0 then
    local ids = redis.call('ZRANGEBYSCORE', KEYS[place], '-inf', ARGV[1], 'LIMIT', 0, limit)
    if #ids > 0 then
      for position, record in ipairs(redis.call('HMGET', KEYS[1], unpack(ids))) do
        table.insert(found, { place - 2, ids[position], record })
      end
      left = left - #ids
    end
  end
end
return found
