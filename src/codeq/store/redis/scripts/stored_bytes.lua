-- Adds to the bytes of artifacts that a tenant has stored, unless there would be more than it may have.
--
-- KEYS    1 bytes by tenant
-- ARGV    1 tenant, 2 bytes to add, which may be less than none, 3 bytes at most, or 0
-- Returns 1 if they were added, else 0; and the bytes that the tenant had before
-- Cost    O(1)
local before = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0)
local after, most = math.max(0, before + tonumber(ARGV[2])), tonumber(ARGV[3])
if most > 0 and after > most and after > before then
  return { 0, before }
end
if after == 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', after))
end
return { 1, before }
