-- Stores or deletes registrations of one kind and tenant, and deletes those that have expired.
--
-- KEYS    1 values by name, 2 names by expiry, 3 tenants by their latest expiry
-- ARGV    1 the tenant, 2 the time, 3 'put', 'add' (only names that are not there), 'advance' (also those whose value is less
--         than another one that is given) or 'remove'; then for each entry its name, and unless it is removed, when it expires and
--         its value, and to advance, the other value
-- Returns per entry: 1 if it was stored or deleted, else 0
-- Cost    O(log n) for each entry, and for each that has expired, 1000 of these at most
local values, expiries, tenants, mode = KEYS[1], KEYS[2], KEYS[3], ARGV[3]
local expired = redis.call('ZRANGEBYSCORE', expiries, '-inf', ARGV[2], 'LIMIT', 0, 1000)
if #expired > 0 then
  redis.call('HDEL', values, unpack(expired))
  redis.call('ZREM', expiries, unpack(expired))
end

local answers = {}
for at = 4, #ARGV, ({ remove = 1, advance = 4 })[mode] or 3 do
  local name = ARGV[at]
  local answer = 1
  if mode == 'remove' then
    answer = redis.call('HDEL', values, name)
    redis.call('ZREM', expiries, name)
  else
    local stored = mode ~= 'put' and redis.call('HGET', values, name)
    if stored and (mode == 'add' or string.sub(stored, 9) >= ARGV[at + 3]) then
      answer = 0
    end
  end
  if mode ~= 'remove' and answer == 1 then
    redis.call('HSET', values, name, struct.pack('>I8', tonumber(ARGV[at + 1])) .. ARGV[at + 2])
    redis.call('ZADD', expiries, ARGV[at + 1], name)
  end
  answers[#answers + 1] = answer
end

local latest = redis.call('ZRANGE', expiries, -1, -1, 'WITHSCORES')
if latest[2] then
  redis.call('ZADD', tenants, latest[2], ARGV[1])
else
  redis.call('ZREM', tenants, ARGV[1])
end
return answers
