-- Frees the lease $1 of owner $2 and epoch $3 at once and cleanly, with notes $4 for the successor.
update outboxd.lease
set owner = null, until = clock_timestamp(), notes = $4::text::jsonb
where name = $1::text and owner = $2::text and epoch = $3::bigint
