-- Spends tokens of buckets that all processes share.
--
-- KEYS    the buckets
-- ARGV    1 the time in milliseconds, or '' for that of Redis; then for each bucket three:
--         tokens to spend, 0 to look, below 0 to give back | tokens per minute | tokens of a full bucket
-- Returns per bucket the tokens that are left; below 0 is a debt, which processes that admitted calls at the same time may make
-- Cost    two commands for a bucket. A bucket expires once it is full again.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local answers = {}
for place, key in ipairs(KEYS) do
  local at = 2 + (place - 1) * 3
  local spent, per_ms, burst = tonumber(ARGV[at]), ARGV[at + 1] / 60000, tonumber(ARGV[at + 2])
  local left, since = burst, now
  local stored = redis.call('GET', key)
  if stored then
    local text, time = string.match(stored, '^(%S+) (%S+)$')
    left, since = tonumber(text), math.min(now, tonumber(time))
  end
  left = math.min(burst, left + (now - since) * per_ms)
  if spent ~= 0 then
    left = math.min(burst, left - spent)
    local full_ms = math.ceil((burst - left) / per_ms)
    if full_ms > 0 then
      redis.call('SET', key, string.format('%.6f %.0f', left, now), 'PX', full_ms)
    else
      redis.call('DEL', key)
    end
  end
  answers[place] = string.format('%.6f', left)
end
return answers
