-- Ends the claim of letter $2 in job $1 under attempt $3: resolved or not ($4), with the error $5. `is_ours` also when
-- this very claim has ended so already: its answer was lost.
select
    outboxd.finish_replay_item($1::uuid, $2::uuid, $3::integer, $4::boolean, $5::text)
    or exists (
        select from outboxd.replay_item i
        where i.job_id = $1::uuid and i.letter_id = $2::uuid and i.attempt = $3::integer
            and i.state = case when $4::boolean then 'RESOLVED' else 'FAILED' end
    ) as is_ours
