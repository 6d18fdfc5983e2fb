-- Keeps the lease $1 of owner $2 and epoch $3 for $4 seconds from now; $5 is laid over its notes, so that a renewal that
-- its owner gave up on and that is carried out late takes no newer note away. An expired lease that nobody took is kept
-- too. No row: it is lost.
update outboxd.lease
set until = clock_timestamp() + make_interval(secs => $4::double precision),
    notes = notes || coalesce($5::text::jsonb, '{}'::jsonb)
where name = $1::text and owner = $2::text and epoch = $3::bigint
returning epoch
