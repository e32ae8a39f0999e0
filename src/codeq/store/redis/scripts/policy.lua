-- Stores or deletes the policy of a queue if it is what the caller has seen, and tells every process.
--
-- KEYS    1 policies
-- ARGV    1 field, 2 the policy that the caller has seen, or '', 3 the new one, or '', 4 channel
-- Returns 1, or 0 if the stored policy is another one
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
  return 0
end
if ARGV[2] == '' and ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1]) -- a probe: shows that writes are accepted, and changes nothing
  return 1
end
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
redis.call('HINCRBY', KEYS[1], '', 1)
redis.call('PUBLISH', ARGV[4], ARGV[1])
return 1
