-- A page of letters, newest first: $1 pipeline, $2 topic, $3 status, $4 error class, $5 fingerprint, $6 key, $7 since,
-- $8 until (all may be NULL); $9 and $10 are time and id of the last letter of the page before; $11 letters at most.
select {{columns}}
from outboxd.letter l
where ($1::text is null or l.pipeline = $1::text)
    and ($2::text is null or l.topic = $2::text)
    and ($3::text is null or l.status = $3::text)
    and ($4::text is null or l.error_class = $4::text or l.error_root_class = $4::text)
    and ($5::text is null or l.fingerprint = $5::text)
    and ($6::bytea is null or l.message_key = $6::bytea)
    and ($7::timestamptz is null or l.created_at >= $7::timestamptz)
    and ($8::timestamptz is null or l.created_at < $8::timestamptz)
    and ($9::timestamptz is null or (l.created_at, l.id) < ($9::timestamptz, $10::uuid))
order by l.created_at desc, l.id desc
limit $11::bigint
