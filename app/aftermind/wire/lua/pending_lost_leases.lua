-- How many leases the turn has lost that is next to be claimed; -1 where none is.
local namespace = redis.call('ZRANGE', ROUNDS, 0, 0)[1]
local owner = namespace and redis.call('ZRANGE', OWNER_ROUNDS .. namespace, 0, 0)[1]
local job = owner and redis.call('ZRANGE', READY .. owner, 0, 0)[1]
return job and tonumber(redis.call('HGET', TURN .. job, 'lost') or 0) or -1
