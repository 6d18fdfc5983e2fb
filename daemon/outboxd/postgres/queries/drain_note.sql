-- Notes position $4 in the lease $1 of owner $2 and epoch $3. No row: it is lost.
update outboxd.lease
set notes = jsonb_set(notes, '{position}', to_jsonb($4::text))
where name = $1::text and owner = $2::text and epoch = $3::bigint
returning epoch
