-- recover: returns tasks whose lock expired to their old places in the queue.
--
-- ARGV    now
-- Returns the ids, at most MOVED_MAX.

write_when_full()
return move_due(in_flight, clock(ARGV[1]))
