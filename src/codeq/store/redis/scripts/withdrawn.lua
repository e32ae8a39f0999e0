-- Drops the run of withdrawn entries at the front. A list is in the order of versions, and whatever was withdrawn is in one sorted
-- set: entries are such a run if as many were withdrawn between their versions.
local function drop_withdrawn(key, withdrawn, priority)
  local head, length = redis.call('LINDEX', key, '0'), redis.call('LLEN', key)
  if not head then
    return
  end
  local from = '[' .. priority .. string.sub(head, 1, 8)
  local function is_run(size)
    local last = '[' .. priority .. string.sub(redis.call('LINDEX', key, size - 1), 1, 8)
    return redis.call('ZLEXCOUNT', withdrawn, from, last) == size
  end
  local low, high = 0, 1
  while high <= length and is_run(high) do
    low, high = high, high * 2
  end
  high = math.min(high, length + 1)
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if is_run(middle) then
      low = middle
    else
      high = middle
    end
  end
  if low > 0 then
    redis.call('LTRIM', key, low, '-1')
  end
end
