-- Keeps the lease $1 of owner $2 and epoch $3 for $4 seconds from now; $5 replaces its notes unless NULL. An expired
-- lease that nobody took is kept too. No row: it is lost.
update outboxd.lease
set until = clock_timestamp() + make_interval(secs => $4::double precision),
    notes = coalesce($5::text::jsonb, notes)
where name = $1::text and owner = $2::text and epoch = $3::bigint
returning epoch
