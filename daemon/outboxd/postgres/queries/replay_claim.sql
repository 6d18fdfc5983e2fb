-- Claims waiting items of pipeline $1 and group $2 in the partitions $3 and $4 for owner $5, $6 at most.
select c.job_id, c.attempt, {{columns}}
from outboxd.claim_replay_items($1::text, $2::text, $3::text[], $4::integer[], $5::text, $6::integer)
    with ordinality as c(job_id, letter_id, letter_created_at, attempt, n)
join outboxd.letter l on l.id = c.letter_id and l.created_at = c.letter_created_at
order by c.n
