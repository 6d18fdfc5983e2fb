-- The live leases whose names start with $1.
select name, owner, extract(epoch from until - clock_timestamp())::double precision as seconds_left
from outboxd.lease
where starts_with(name, $1::text) and owner is not null and until > clock_timestamp()
