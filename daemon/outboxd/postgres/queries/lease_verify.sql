-- One row when the lease $1 is owner $2's under epoch $3 and not expired.
select epoch from outboxd.lease
where name = $1::text and owner = $2::text and epoch = $3::bigint and until > clock_timestamp()
